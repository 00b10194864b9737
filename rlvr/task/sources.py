"""Problems from the rows of one or several data sets: which column is which, names of benchmarks, distinct ids."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlvr.records import Problem, Split
from rlvr.task.prompt_length import PromptLimit
from rlvr.task.read import Row, Table, read

PROMPT_FIELDS = ("prompt", "problem", "question")
SOURCE_FIELD, ID_FIELD = "source", "id"

Sources = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class Column:
    """A column that a task reads: what the user named it, or else the first of its usual names that is there."""

    knob: str  # of the task: names the column
    wanted: str | None
    usual: Sequence[str]
    optional: bool = False

    def find(self, columns: Row, where: str) -> str | None:
        """Its name in this data set; None for an optional one, which every row is asked for.

        ValueError if it must be there and is not.
        """
        if self.optional and not self.wanted:
            return None
        for name in (self.wanted,) if self.wanted else self.usual:
            if _get(columns, name) is not None:
                return name
        looked_for = self.wanted or f"any of {', '.join(self.usual)}"
        raise ValueError(f"{where} has no column {looked_for}. It has: {', '.join(columns)}. Pass task.{self.knob}=...")

    def cell(self, row: Row, name: str | None, place: str) -> Cell:
        """Its value in a row, in the column that `find` found."""
        if name is None:
            name = next((usual for usual in self.usual if _get(row, usual) is not None), self.usual[0])
        return Cell(_get(row, name), place, name)


class Cell(NamedTuple):
    """One value, and where it stands."""

    value: Any
    place: str
    column: str

    def refuse(self, expected: str) -> ValueError:
        shown = repr(self.value)
        shown = shown if len(shown) < 200 else f"{shown[:200]}…"
        return ValueError(f"{self.place}: {self.column} is {shown}, expected {expected}.")

    def prompt(self) -> str:
        """A text, or a chat of one message whose content is the text."""
        value = self.value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            value = value[0].get("content")
        if not isinstance(value, str) or not value.strip():
            raise self.refuse("a text or one chat message")
        return value

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.refuse("a text")
        return self.value


class Posed(NamedTuple):
    """A problem, and its text as the data have it: without template."""

    text: str
    problem: Problem


@dataclass(frozen=True)
class Selection:
    """Which rows of the training data are learned from.

    validation: the share that is held out of it, decided by a hash of each problem's text, white space aside: the same
        problem is on the same side in every file, order and template. Problems of the test data are not among them.
    train_problems: a fixed training set of so many different problems, again by hash: a smaller set is part of a larger
        one. None: all. limit: what becomes of long prompts.
    """

    validation: float = 0.0
    train_problems: int | None = None
    limit: PromptLimit = field(default_factory=PromptLimit)

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise ValueError(f"task.validation={self.validation} is a share of the training data, 0 to less than 1.")
        if self.train_problems is not None and self.train_problems < 1:
            raise ValueError(f"task.train_problems={self.train_problems} must be 1 or more, or null for all.")

    def splits(self, train: Sequence[Posed], test: Sequence[Posed]) -> dict[Split, list[Problem]]:
        self.limit.check_test([posed.problem for posed in test])
        dropped = self.limit.too_long([posed.problem for posed in train])
        usable = [posed for posed in train if posed.problem.id not in dropped]
        known = {posed.text for posed in test}
        held_out = [p.text not in known and _share("validation", p.text) < self.validation for p in usable]
        if self.validation and not 0 < sum(held_out) < len(usable):
            raise ValueError(
                f"task.validation={self.validation} of {len(usable)} training problems is {sum(held_out)}, and both "
                "parts need some. Pass another share, or 0."
            )
        learned = [posed for posed, held in zip(usable, held_out, strict=True) if not held]
        return {
            "train": [posed.problem for posed in self._fixed(learned)],
            "validation": [posed.problem for posed, held in zip(usable, held_out, strict=True) if held],
            "test": [posed.problem for posed in test],
        }

    def _fixed(self, learned: Sequence[Posed]) -> Sequence[Posed]:
        """`train_problems` of them, in their order; all if it is None."""
        if self.train_problems is None:
            return learned
        first = {posed.problem.prompt: place for place, posed in reversed(list(enumerate(learned)))}
        if self.train_problems > len(first):
            raise ValueError(
                f"task.train_problems={self.train_problems}, and {len(first)} different training problems are left to "
                "choose from. Pass a smaller number, or null for all."
            )
        places = sorted(first.values(), key=lambda place: (_share("train", learned[place].text), place))
        return [learned[place] for place in sorted(places[: self.train_problems])]


def _share(purpose: str, text: str) -> float:
    """A number in [0, 1) that the text alone decides."""
    digest = hashlib.blake2b(f"{purpose} {text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def problems(
    train: Sources, test: Sources, columns: Sequence[Column], make: Callable[..., tuple[str, Any]], selection: Selection
) -> dict[Split, list[Problem]]:
    """A problem of every row of the data: `make` takes the cells of `columns` and returns (prompt, answer).

    train, test: a path or hub name (`rlvr.task.read`), a list of them, or a mapping {benchmark: path or hub name}.
        Without a mapping a row's `source` names its benchmark, or else its file or folder does.
    columns: the first holds the problem's text.
    """
    return selection.splits(_rows("train", train, columns, make), _rows("test", test, columns, make))


def _rows(
    split: Split, sources: Sources, columns: Sequence[Column], make: Callable[..., tuple[str, Any]]
) -> list[Posed]:
    places = {sources: ""} if isinstance(sources, str) else _named(sources or ())
    if not places or not all(places):
        raise ValueError(f"task.{split} is empty: pass task.{split}=PATH or task.{split}=organisation/name.")
    found: list[Posed] = []
    for where, benchmark in places.items():
        table = read(where, split)
        names = [column.find(table.rows[0][1], where) for column in columns]
        for number, (place, row) in enumerate(table.rows):
            cells = [column.cell(row, name, place) for column, name in zip(columns, names, strict=True)]
            prompt, answer = make(*cells)
            label = str(row.get(ID_FIELD, f"{benchmark or table.name}-{number}"))
            problem = Problem(label, prompt, answer, _source(row, benchmark, table))
            found.append(Posed(" ".join(str(cells[0].value).split()), problem))
    return _distinct(found)


def check_template(template: str) -> None:
    if "{problem}" not in template:
        raise ValueError(f"task.template={template!r} must contain {{problem}}, where the problem goes.")


def _named(sources: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """{where: name or ""}. Raises ValueError if one file stands there twice: its problems would count twice."""
    pairs = [(w, n) for n, w in sources.items()] if isinstance(sources, Mapping) else [(w, "") for w in sources]
    if twice := [where for where, num in Counter(where for where, _ in pairs).items() if num > 1]:
        raise ValueError(f"{twice[0]} stands twice in task.train or task.test: name it once.")
    return dict(pairs)


def _get(row: Row, name: str) -> Any:
    """row[name], or row["a"]["b"] for "a.b", where row["a"] may be JSON text; None if it is not there."""
    value: Any = row.get(name)
    if value is None and "." in name:
        head, rest = name.split(".", 1)
        inner = row.get(head)
        if isinstance(inner, str) and inner.startswith("{"):
            with contextlib.suppress(ValueError):  # some other text
                inner = json.loads(inner)
        value = _get(inner, rest) if isinstance(inner, dict) else None
    return value


def _source(row: Row, name: str, table: Table) -> str:
    """The benchmark's name, in characters that a metric's name may have; a slash would divide it."""
    return re.sub(r"[^\w.-]+", "-", name or str(row.get(SOURCE_FIELD) or table.name))


def _distinct(rows: list[Posed]) -> list[Posed]:
    """The same problems; the second of an id becomes id#2, and so on: noise and tables are keyed by it."""
    taken: set[str] = set()
    seen: Counter[str] = Counter()
    result: list[Posed] = []
    for text, problem in rows:
        label = problem.id
        while label in taken:
            seen[problem.id] += 1
            label = f"{problem.id}#{seen[problem.id] + 1}"
        taken.add(label)
        result.append(Posed(text, replace(problem, id=label)))
    return result
