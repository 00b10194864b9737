"""Problems from the rows of one or several data sets: which column is which, names of benchmarks, distinct ids."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlvr.records import Problem, Split
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


def problems(
    train: Sources, test: Sources, columns: Sequence[Column], make: Callable[..., tuple[str, Any]]
) -> dict[Split, list[Problem]]:
    """A problem of every row of both splits: `make` takes the cells of `columns` and returns (prompt, answer).

    train, test: a path or hub name (`rlvr.task.read`), a list of them, or a mapping {benchmark: path or hub name}.
        Without a mapping a row's `source` names its benchmark, or else its file or folder does.
    """
    return {"train": _split("train", train, columns, make), "test": _split("test", test, columns, make)}


def _split(
    split: Split, sources: Sources, columns: Sequence[Column], make: Callable[..., tuple[str, Any]]
) -> list[Problem]:
    places = {sources: ""} if isinstance(sources, str) else _named(sources or ())
    if not places or not all(places):
        raise ValueError(f"task.{split} is empty: pass task.{split}=PATH or task.{split}=organisation/name.")
    found: list[Problem] = []
    for where, benchmark in places.items():
        table = read(where, split)
        names = [column.find(table.rows[0][1], where) for column in columns]
        for number, (place, row) in enumerate(table.rows):
            cells = (column.cell(row, name, place) for column, name in zip(columns, names, strict=True))
            prompt, answer = make(*cells)
            label = str(row.get(ID_FIELD, f"{benchmark or table.name}-{number}"))
            found.append(Problem(label, prompt, answer, _source(row, benchmark, table)))
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
