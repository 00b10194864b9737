"""One look at the data of a task before a launch: what the model reads, what counts as right, what contradicts."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.config.base_model import response_ends
from rlvr.records import Problem, Split, Task, TaughtTask
from rlvr.task.fence import ASKED, Marking, requests
from rlvr.task.math import Math
from rlvr.task.prompt_length import Reader
from rlvr.task.sources import FIRST, Posed, Rows
from rlvr.task.verified import Loaded, Prompted

WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")  # no command of LaTeX
PROSE = 5  # words that no final answer has
# \n as two characters. Before a lower-case letter it may be a command of LaTeX, such as \neq, but for these words.
ESCAPE = re.compile(r"\\[nt](?![a-z])|\\n(?=(?:answer|please|question|problem|put|solve|think|let|the)\b)")


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model reads it, with the tokens that its tokenizer puts before a text, and its right answer."""

    problem: str  # its id
    prompt: str
    num_tokens: int
    typed: str  # the right answer as it is in the data
    place: str  # of it: file, line and column; "" for a generated problem
    read: str | None  # the right answer as the task reads it; None: only the same text is right


@dataclass(frozen=True)
class FirstLook:
    """notable: sentences for the user of a launch. The other facts are of the first rows, where prompts are shown."""

    notable: tuple[str, ...] = ()
    prompts: tuple[ShownPrompt, ...] = ()
    num_rows: int = 0  # that were looked at
    text_only: int = 0  # right answers of which only the same text is right
    lengths: tuple[int, float, int] = (0, 0, 0)  # least, median and most tokens of a prompt
    ends: tuple[str, ...] = ()  # tokens that end a response
    marks: tuple[str, ...] = ()  # how a response may mark its answer, in the words of a prompt


def look(task: Task, plain: Mapping[str, Any], num_shown: int) -> FirstLook:
    """A look at a task of a frozen config. Raises ValueError if right answers are prose.

    num_shown: prompts to be shown; 0: only what is notable, which loads no tokenizer and parses no answer.
    """
    rows_of_task = task.rows if isinstance(task, Loaded) else Rows({}, {}, ())
    files, notable = rows_of_task.first, [*rows_of_task.repeated, *_escapes(plain)]
    for file, rows in files.items():
        notable += [
            *(_prose(file, rows, plain["task"]) if isinstance(task, Math) else ()),
            *_requests(task, file, rows),
        ]
    node: Mapping[str, Any] = plain.get("policy") or plain["model"] or {}
    reader = Reader(node.get("path"), bool(node.get("chat")), node.get("system"))
    reader = task.prompt_limit().reader if isinstance(task, Prompted) else reader
    ends = response_ends(reader.path, chat=bool(reader.chat)) if reader.path else []
    notable += _with_ends(files, ends)
    if not num_shown:
        return FirstLook(tuple(notable))
    first: Sequence[Posed] = next(iter(files.values()), ())
    problems = [posed.problem for posed in first] or _generated(task, "test" if plain.get("policy") else "train")
    read: list[str | None] = [str(problem.answer) for problem in problems]
    if isinstance(task, Loaded):
        read = task.as_judged(problems)
    before, lengths = reader.lengths([problem.prompt for problem in problems])
    shown = list[ShownPrompt]()
    for index, problem in enumerate(problems[:num_shown]):
        typed, place = str(problem.answer), ""
        if first:
            typed, place = first[index].answer.shown, f"{first[index].answer.place}, {first[index].answer.column}"
        shown.append(
            ShownPrompt(problem.id, before + reader.text(problem.prompt), lengths[index], typed, place, read[index])
        )
    end_words = (task.end_word,) if isinstance(task, TaughtTask) else ()
    return FirstLook(
        tuple(notable),
        tuple(shown),
        len(problems),
        read.count(None),
        (min(lengths), statistics.median(lengths), max(lengths)) if lengths else (0, 0, 0),
        tuple(ends) if reader.path else end_words,
        tuple(ASKED[mark][0] for mark in task.reads) if isinstance(task, Prompted) else (),
    )


def _with_ends(files: Mapping[str, Sequence[Posed]], ends: Sequence[str]) -> list[str]:
    """A sentence for each text of a token that ends a response, such as HTML's </s>, and file with it in prompts."""
    numbers = {(file, end): sum(end in p.problem.prompt for p in rows) for file, rows in files.items() for end in ends}
    return [
        f"{file}: {number} of the first {len(files[file])} prompts contain {end}, which the model reads as the end of "
        "a response. Write it otherwise."
        for (file, end), number in numbers.items()
        if number
    ]


def _generated(task: Task, split: Split) -> list[Problem]:
    size = task.size(split)
    return [task.problem(split, i) for i in range(FIRST if size is None else min(FIRST, size))]


def _prose(file: str, rows: Sequence[Posed], knobs: Mapping[str, Any]) -> list[str]:
    """A sentence if most right answers are prose, which mathematics cannot equal. Raises ValueError if they are, in a
    column that the user has not named.
    """
    prose = [posed for posed in rows if len(WORD.findall(str(posed.problem.answer))) >= PROSE]
    if 2 * len(prose) <= len(rows):
        return []
    cell = prose[0].answer
    sentence = (
        f"{file}: {len(prose)} of the first {len(rows)} right answers are prose, and only the same text is right, such "
        f"as {cell.shown} ({cell.place}, column {cell.column}). If the final answer is in another column: "
        f"task.answer_field=NAME, of {', '.join(prose[0].row)}."
    )
    if knobs.get("answer_field") is None:
        raise ValueError(f"{sentence} If it is in this one: task.answer_field={cell.column}")
    return [sentence]


def _requests(task: Task, file: str, rows: Sequence[Posed]) -> list[str]:
    """A sentence on prompts that ask for a marking that the task does not read, for none, or twice."""
    if not isinstance(task, Prompted) or not task.reads:
        return []
    reads: set[Marking] = {*task.reads}
    of_template = requests(task.template)
    times = Counter[Marking](mark for posed in rows for mark in requests(posed.text))
    of_rows: set[Marking] = {mark for mark, number in times.items() if 2 * number > len(rows)}
    alone = "'task.template=\"{problem}\"'" if "{choices}" not in task.template else "a task.template without it"
    asks = f"{file}: most problems ask for the answer {_words(of_rows)}"
    if of_rows and not of_rows & reads:
        return [f"{asks}, and it is read {_words(reads)}. Type task.marked={min(of_rows)} {alone}."]
    if of_rows and of_template:
        return [f"{asks}, and task.template asks for it {_words(of_template)}. Type {alone}."]
    if of_template and not of_template & reads:
        what = f"task.template asks for the answer {_words(of_template)}, and it is read {_words(reads)}."
        return [f"{what} Type task.marked={min(of_template)}."]
    if not of_rows | of_template and "whole" not in reads:
        return [
            f"{file}: the answer is read {_words(reads)}, and neither most problems nor task.template ask for that."
        ]
    return []


def _words(marks: Collection[Marking]) -> str:
    return " or ".join(words for mark, (words, _) in ASKED.items() if mark in marks)


def _escapes(plain: Mapping[str, Any]) -> list[str]:
    """A sentence for each typed text with a line break as two characters: the model reads a backslash and a letter."""
    section = "policy" if plain.get("policy") else "model"
    texts: dict[str, object] = {
        "task.template": plain["task"].get("template"),
        f"{section}.system": (plain[section] or {}).get("system"),
    }
    return [
        f"{key} has {match[0][:2]} as two characters, which the model reads so. In bash a line break is typed within "
        f"$'...': $'{key}=\"...\\n...\"'."
        for key, text in texts.items()
        if isinstance(text, str) and (match := ESCAPE.search(text))
    ]
