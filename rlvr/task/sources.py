"""Problems from the rows of one or several data sets: finds the columns, names benchmarks, makes ids distinct."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlvr.records import Problem, Split, hash64, name_part
from rlvr.task.prompt_length import PromptLimit
from rlvr.task.read import DataTable, Row, read

log = logging.getLogger("rlvr")

PROMPT_FIELDS = ("prompt", "problem", "question")
SOURCE_FIELD, ID_FIELD = "source", "id"
FIRST = 64  # rows that are looked at before a launch

Sources = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class Column:
    """A column that a task reads: the one that the user names, or else the first of the usual names that exists."""

    knob: str  # the task's knob that names the column
    wanted: str | None  # the name that the user gives
    usual: Sequence[str]
    optional: bool = False

    def find(self, columns: Row, where: str) -> str | None:
        """The column's name in a data set; None for an optional column, which `cell` looks for in each row.

        columns: the first row. Raises ValueError if a column that is not optional does not exist.
        """
        if self.optional and not self.wanted:
            return None
        names = (self.wanted,) if self.wanted else self.usual
        valued = [name for name in names if _get(columns, name) is not None]
        if known := valued or [name for name in names if name in columns]:  # a null is refused with its row, not here
            return known[0]
        looked_for = self.wanted or f"any of {', '.join(self.usual)}"
        raise ValueError(f"{where} has no column {looked_for}. It has: {', '.join(columns)}. Pass task.{self.knob}=...")

    def cell(self, row: Row, name: str | None, place: str) -> RowValue:
        """The value in a row. name: what `find` returned for the data set."""
        if name is None:
            name = next((usual for usual in self.usual if _get(row, usual) is not None), self.usual[0])
        return RowValue(_get(row, name), place, name)


class RowValue(NamedTuple):
    """One value, and the place it comes from."""

    value: Any
    place: str  # file and line, or data set and row
    column: str

    def refuse(self, expected: str) -> ValueError:
        """An exception for the caller to raise, with the place, the value and what is expected instead."""
        return ValueError(f"{self.place}: {self.column} is {self.shown}, expected {expected}.")

    @property
    def shown(self) -> str:
        """The value in a message."""
        shown = repr(self.value)
        return shown if len(shown) < 200 else f"{shown[:200]}…"

    def prompt(self) -> str:
        """The text of the cell, which holds a text or a chat of one message. Raises ValueError for anything else."""
        value = self.value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            value = value[0].get("content")
        if not isinstance(value, str) or not value.strip():
            raise self.refuse("a text or one chat message")
        return value

    def answer(self) -> str | int | float:
        """A text or a finite number, alone or as the only element of a list. Raises ValueError for anything else."""
        value = self.value[0] if isinstance(self.value, list) and len(self.value) == 1 else self.value
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise self.refuse("a text or a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.refuse("a finite number")
        return value

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.refuse("a text")
        return self.value


class Posed(NamedTuple):
    """A problem, and its text as it is in the data: without the template, and the same as a text or a chat message."""

    text: str
    problem: Problem
    answer: RowValue  # the cell that its right answer was taken from
    row: Row


@dataclass(frozen=True)
class Rows:
    """The rows that a task has read.

    first: of each file or name on the hub, training data first. repeated: sentences on rows with the same question.
    """

    problems: Mapping[Split, Sequence[Problem]]
    first: Mapping[str, Sequence[Posed]]
    repeated: Sequence[str]


@dataclass(frozen=True)
class TrainSelection:
    """Which rows of the training data are used for training.

    validation: share of the training data that is held out, decided by a hash of each problem's text without regard to
        white space: a problem is on the same side in every file, order and template, as a text or as a chat message.
        Problems that are also in the test data are never in the validation split.
    train_problems: number of different problems of a fixed training set, again chosen by a hash, so that a smaller set
        is part of a larger one. None: all. limit: what happens to long prompts.
    """

    validation: float = 0.0
    train_problems: int | None = None
    limit: PromptLimit = field(default_factory=PromptLimit)

    def splits(self, train: Sequence[Posed], test: Sequence[Posed]) -> dict[Split, list[Problem]]:
        """The three splits. Raises ValueError if a knob leaves nothing in a split, or for long prompts."""
        self.limit.check_test([posed.problem for posed in test])
        dropped = self.limit.too_long([posed.problem for posed in train])
        usable = [posed for posed in train if posed.problem.id not in dropped]
        test_texts = {posed.text for posed in test}
        held_out = [p.text not in test_texts and share("validation", p.text) < self.validation for p in usable]
        if self.validation and not 0 < sum(held_out) < len(usable):
            raise ValueError(
                f"task.validation={self.validation} of {len(usable)} training problems is {sum(held_out)}, and both "
                "parts need some. Pass another share, or 0."
            )
        learned = [posed for posed, held in zip(usable, held_out, strict=True) if not held]
        if not learned:
            raise ValueError(f"no training problem is left of {len(train)}: all have too long prompts.")
        if num_shared := sum(posed.text in test_texts for posed in learned):
            log.warning(
                "%d of %d training problems are in task.test, too: a policy trained on them knows these answers.",
                num_shared,
                len(learned),
            )
        return {
            "train": [posed.problem for posed in self._fixed(learned)],
            "validation": [posed.problem for posed, held in zip(usable, held_out, strict=True) if held],
            "test": [posed.problem for posed in test],
        }

    def _fixed(self, learned: Sequence[Posed]) -> Sequence[Posed]:
        """`train_problems` of the problems in their order, or all if it is None."""
        if self.train_problems is None:
            return learned
        first = {posed.problem.prompt: place for place, posed in reversed(list(enumerate(learned)))}
        if self.train_problems > len(first):
            raise ValueError(
                f"task.train_problems={self.train_problems}, and {len(first)} different training problems are left to "
                "choose from. Pass a smaller number, or null for all."
            )
        places = sorted(first.values(), key=lambda place: (share("train", learned[place].text), place))
        return [learned[place] for place in sorted(places[: self.train_problems])]


def share(purpose: str, text: str) -> float:
    """A number in [0, 1), a hash of purpose and text."""
    return hash64(f"{purpose} {text}") / 2**64


def problems(
    train: Sources | None,
    test: Sources,
    columns: Sequence[Column],
    make: Callable[..., tuple[str, Any]],
    selection: TrainSelection,
    revision: str | None = None,
) -> Rows:
    """One problem for each row of the data. make: takes the cells of `columns` and returns (prompt, answer).

    train, test: a path or hub name (`rlvr.task.read`), a list of them, or a mapping {benchmark: path or hub name}.
        Without a mapping the benchmark is a row's `source`, or else the name of its file or folder.
        train is None for an evaluation, which reads no training data.
    columns: the first one contains the problem, as `RowValue.prompt` reads it, the second one the right answer.
    revision: of the hub names without one.
    """
    first: dict[str, Sequence[Posed]] = {}
    of_train = [] if train is None else _rows("train", train, columns, make, revision, first)
    of_test = _rows("test", test, columns, make, revision, first)
    repeated = [*_repeated("train", of_train), *_repeated("test", of_test)]
    if train is None:
        selection.limit.check_test([posed.problem for posed in of_test])
        alone: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": [row.problem for row in of_test]}
        return Rows(alone, first, repeated)
    return Rows(selection.splits(of_train, of_test), first, repeated)


def _repeated(split: Split, rows: Sequence[Posed]) -> list[str]:
    """Sentences on questions that several rows ask, of the test data several rows of one benchmark, and on those that
    they answer differently. Questions are equal if their prompts are, white space aside.
    """
    times = Counter(posed.text for posed in rows)
    first: dict[tuple[str, str], Posed] = {}
    pairs = list[tuple[Posed, Posed]]()
    for posed in rows:
        if times[posed.text] > 1:  # else its prompt is the only one, too
            key = (posed.problem.source * (split == "test"), " ".join(posed.problem.prompt.split()))
            if (known := first.setdefault(key, posed)) is not posed:
                pairs.append((known, posed))
    others = [(a, b) for a, b in pairs if a.problem.answer != b.problem.answer]
    if not pairs:
        return []
    weight = " and count again in its averages" if split == "test" else ""
    answers = " and ".join(f"{posed.answer.place} ({posed.answer.shown})" for posed in (others or pairs)[0])
    differ = f"{len(others):,} with" if others else "none with"
    return [
        f"task.{split}: {len(pairs):,} of {len(rows):,} rows ask what a row before them asks{weight}, {differ} another "
        f"right answer, such as {answers}."
    ]


def _rows(
    split: Split,
    sources: Sources,
    columns: Sequence[Column],
    make: Callable[..., tuple[str, Any]],
    revision: str | None,
    first: dict[str, Sequence[Posed]],
) -> list[Posed]:
    """The rows of a split; the first of each file are added to `first`."""
    benchmarks = {sources: ""} if isinstance(sources, str) else _benchmarks(sources or ())
    if not benchmarks or not all(benchmarks):
        raise ValueError(f"task.{split} is empty: pass task.{split}=PATH or task.{split}=organisation/name.")
    rows: list[Posed] = []
    place_of: dict[str, str] = {}  # by benchmark, where it comes from
    for where, benchmark in benchmarks.items():
        table = read(where, split, revision)
        _check_benchmark(split, where, benchmark, table, place_of)
        names = [column.find(table.rows[0][1], where) for column in columns]
        for number, (place, row) in enumerate(table.rows):
            cells = [column.cell(row, name, place) for column, name in zip(columns, names, strict=True)]
            prompt, answer = make(*cells)
            label = str(row.get(ID_FIELD, f"{benchmark or table.name}-{number}"))
            problem = Problem(label, prompt, answer, _source(row, benchmark, table))
            rows.append(Posed(" ".join(cells[0].prompt().split()), problem, cells[1], row))
        first[where] = rows[-len(table.rows) :][:FIRST]
    return _with_distinct_ids(rows)


def _check_benchmark(split: str, where: str, benchmark: str, table: DataTable, place_of: dict[str, str]) -> None:
    """ValueError if two test data sets would be one benchmark by their names, unless their rows name it themselves."""
    if split != "test" or (not benchmark and all(SOURCE_FIELD in row for _, row in table.rows)):
        return
    name = _source({}, benchmark, table)
    if name in place_of:
        raise ValueError(
            f"{place_of[name]} and {where} would both be the benchmark {name}. Name them: "
            f"'task.test={{first: {place_of[name]}, second: {where}}}'."
        )
    place_of[name] = where


def check_template(template: str) -> None:
    if "{problem}" not in template:
        raise ValueError(f"task.template={template!r} must contain {{problem}}, where the problem goes.")


def _benchmarks(sources: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """{path or hub name: benchmark or ""}. Raises ValueError for a repeated path: its problems would count twice."""
    if isinstance(sources, Mapping):
        pairs = [(where, str(benchmark)) for benchmark, where in sources.items()]  # 2024 is typed as a number
    else:
        pairs = [(where, "") for where in sources]
    repeated = [where for where, number in Counter(where for where, _ in pairs).items() if number > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} appears twice in task.train or task.test: name it once.")
    return dict(pairs)


def _get(row: Row, name: str) -> Any:
    """row[name], or row["a"]["b"] for "a.b", where row["a"] may be JSON text; None if the row has no such value."""
    value: Any = row.get(name)
    if value is None and "." in name:
        outer_name, inner_name = name.split(".", 1)
        inner = row.get(outer_name)
        if isinstance(inner, str) and inner.startswith("{"):
            with contextlib.suppress(ValueError):  # a text that is not JSON
                inner = json.loads(inner)
        value = _get(inner, inner_name) if isinstance(inner, dict) else None
    return value


def _source(row: Row, name: str, table: DataTable) -> str:
    """The benchmark's name, as a part of a metric's name."""
    return name_part(name or str(row.get(SOURCE_FIELD) or table.name))


def _with_distinct_ids(rows: list[Posed]) -> list[Posed]:
    """The same problems, the second with an id renamed to id#2, and so on: noise and tables are keyed by ids."""
    taken: set[str] = set()
    num_repeated: Counter[str] = Counter()
    result: list[Posed] = []
    for posed in rows:
        problem, label = posed.problem, posed.problem.id
        while label in taken:
            num_repeated[problem.id] += 1
            label = f"{problem.id}#{num_repeated[problem.id] + 1}"
        taken.add(label)
        result.append(posed._replace(problem=replace(problem, id=label)))
    return result
