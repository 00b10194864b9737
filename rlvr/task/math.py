"""Mathematics with known final answers, from any data set; math-verify judges \\boxed{...} in killable processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.records import Problem, Reward, Split
from rlvr.task.read import Row, Table, read
from rlvr.verify.pool import Pool

PROMPT_FIELDS = ("prompt", "problem", "question")
ANSWER_FIELDS = ("answer", "final_answer", "solution", "reward_model.ground_truth")
SOURCE_FIELD, ID_FIELD = "source", "id"

Sources = str | Sequence[str] | Mapping[str, str]


class Math:
    """Problems of a training set and of one or several benchmarks.

    train, test: a path or hub name (see `rlvr.task.read`), a list of them, or a mapping {benchmark: path or hub name}.
        Without a mapping a row's `source` names its benchmark, or else its file or folder does.
    template: the prompt, with {problem} where the problem goes.
    prompt_field, answer_field: columns, dots reach into nested ones; None finds the usual names.
    boxed: only the last \\boxed{...} of a response is its answer; if False, math-verify searches the whole response,
        and takes the last number of a text that stops in the middle for its answer.
    max_tokens: default limit of a response.
    workers, timeout_s, memory_gb: verifying processes, wall-clock limit of an answer, address space of a process.
    """

    name = "math"

    def __init__(
        self,
        *,
        train: str | Sequence[str] | Mapping[str, str],
        test: str | Sequence[str] | Mapping[str, str],
        template: str,
        prompt_field: str | None,
        answer_field: str | None,
        boxed: bool,
        max_tokens: int,
        workers: int,
        timeout_s: float,
        memory_gb: float,
    ) -> None:
        if "{problem}" not in template:
            raise ValueError(f"task.template={template!r} must contain {{problem}}, where the problem goes.")
        self.max_tokens = max_tokens
        self._boxed = boxed
        fields = {"prompt_field": prompt_field, "answer_field": answer_field}
        self._problems: dict[Split, list[Problem]] = {
            "train": _problems("train", train, template, **fields),
            "test": _problems("test", test, template, **fields),
        }
        self._pool = Pool("rlvr.verify.math_answer", workers=workers, timeout_s=timeout_s, memory_gb=memory_gb)

    def size(self, split: Split) -> int | None:
        return len(self._problems[split])

    def problem(self, split: Split, index: int) -> Problem:
        return self._problems[split][index]

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where math-verify finds the response's answer equal to the right one, else 0, with the reason."""
        texts = [last_boxed(text) if self._boxed else text for _, text in answers]
        asked = [i for i, text in enumerate(texts) if text is not None]
        replies = self._pool.ask([{"gold": answers[i][0].answer, "answer": texts[i]} for i in asked])
        rewards = [Reward(0.0, "unparsable")] * len(answers)
        for i, reply in zip(asked, replies, strict=True):
            rewards[i] = Reward(float(reply["outcome"] == "correct"), reply["outcome"])
        return rewards

    def close(self) -> None:
        self._pool.close()


# Read in one pass, however many braces a degenerate response opens. \{ and \} belong to the answer, \\ is a line break.
BRACES = re.compile(r"\\boxed\{|\\\\(?!boxed\{)|\\[{}]|[{}]")


def last_boxed(text: str) -> str | None:
    r"""The complete \boxed{...} of a response that starts last, braces balanced; None if there is none."""
    open_at: list[int | None] = []  # a stack: where a \boxed{ starts, None for another brace
    found: tuple[int, int] | None = None
    for brace in BRACES.finditer(text):
        if brace[0] == r"\boxed{":
            open_at.append(brace.start())
        elif brace[0] == "{":
            open_at.append(None)
        elif brace[0] == "}" and open_at:
            start = open_at.pop()
            if start is not None and (found is None or start > found[0]):
                found = (start, brace.end())
    return text[slice(*found)] if found else None


def _problems(
    split: Split, sources: Sources, template: str, *, prompt_field: str | None, answer_field: str | None
) -> list[Problem]:
    places = {sources: ""} if isinstance(sources, str) else _named(sources or ())
    if not places or not all(places):
        raise ValueError(f"task.{split} is empty: pass task.{split}=PATH or task.{split}=organisation/name.")
    problems: list[Problem] = []
    for where, name in places.items():
        table = read(where, split)
        columns = table.rows[0][1]
        prompt = _field("prompt_field", prompt_field, PROMPT_FIELDS, columns, where)
        answer = _field("answer_field", answer_field, ANSWER_FIELDS, columns, where)
        problems += [
            Problem(
                id=str(row.get(ID_FIELD, f"{name or table.name}-{number}")),
                prompt=template.replace("{problem}", _prompt(_get(row, prompt), place, prompt)),
                answer=_answer(_get(row, answer), place, answer),
                source=_source(row, name, table),
            )
            for number, (place, row) in enumerate(table.rows)
        ]
    return _distinct(problems)


def _named(sources: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """{where: name or ""}. Raises ValueError if one file stands there twice: its problems would count twice."""
    pairs = [(w, n) for n, w in sources.items()] if isinstance(sources, Mapping) else [(w, "") for w in sources]
    if twice := [where for where, num in Counter(where for where, _ in pairs).items() if num > 1]:
        raise ValueError(f"{twice[0]} stands twice in task.train or task.test: name it once.")
    return dict(pairs)


def _field(knob: str, wanted: str | None, usual: Sequence[str], columns: Row, where: str) -> str:
    for name in (wanted,) if wanted else usual:
        if _get(columns, name) is not None:
            return name
    looked_for = wanted or f"any of {', '.join(usual)}"
    raise ValueError(f"{where} has no column {looked_for}. It has: {', '.join(columns)}. Pass task.{knob}=...")


def _get(row: Row, name: str) -> Any:
    """row[name], or row["a"]["b"] for "a.b"; None if it is not there."""
    value: Any = row.get(name)
    if value is None and "." in name:
        head, rest = name.split(".", 1)
        inner = row.get(head)
        value = _get(inner, rest) if isinstance(inner, dict) else None
    return value


def _prompt(value: Any, place: str, name: str) -> str:
    """A text, or a chat of one message whose content is the text."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{place}: {name} is {value!r}, expected a text or one chat message.")
    return value


def _answer(value: Any, place: str, name: str) -> str:
    """The final answer as text. Of a worked solution in the style of GSM8K what follows the last ####."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ValueError(f"{place}: {name} is {value!r}, expected a text or a number.")
    text = str(value)
    if "####" in text:
        text = text.rpartition("####")[2].replace(",", "")
    return last_boxed(text) or text.strip()


def _source(row: Row, name: str, table: Table) -> str:
    """The benchmark's name, in characters that a metric's name may have; a slash would divide it."""
    return re.sub(r"[^\w.-]+", "-", name or str(row.get(SOURCE_FIELD) or table.name))


def _distinct(problems: list[Problem]) -> list[Problem]:
    """The same problems; the second of an id becomes id#2, and so on: noise and tables are keyed by it."""
    taken: set[str] = set()
    seen: Counter[str] = Counter()
    result: list[Problem] = []
    for problem in problems:
        label = problem.id
        while label in taken:
            seen[problem.id] += 1
            label = f"{problem.id}#{seen[problem.id] + 1}"
        taken.add(label)
        result.append(replace(problem, id=label))
    return result
