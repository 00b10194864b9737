"""Judged samples of every evaluation, counted by problem: the input of avg@n, pass@k and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.frames.tables import decoded

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class ProblemCounts:
    """The counts of one evaluation on one benchmark: judged samples n [P] and correct ones c [P], by problem.

    problems: (benchmark, id). errors: number of samples whose verifier failed; they are not in n.
    """

    problems: tuple[tuple[str, str], ...]
    n: Whole
    c: Whole
    errors: int


class Counts:
    """A table `counts` (frames/tables.py), by run, step, benchmark and problem. Rows of one evaluation and benchmark
    are adjacent."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.empty = table.num_rows == 0

    @cached_property
    def most_samples(self) -> int:
        """The largest number of judged samples of a problem; 0 if there are no samples."""
        return int(self._columns[0].max()) if not self.empty else 0

    @cached_property
    def num_errors(self) -> int:
        """Number of samples, in all evaluations, whose verifier failed."""
        return int(self._columns[2].sum())

    @cached_property
    def evaluations(self) -> set[tuple[str, int]]:
        """The run and step of every evaluation."""
        return {(run_id, step) for run_id, step, _ in self._slices}

    def of(self, run_id: str, step: int, source: str) -> ProblemCounts | None:
        """The counts of an evaluation on a benchmark; None if its samples are not available."""
        rows = self._slices.get((run_id, step, source))
        if rows is None:
            return None
        n, c, errors = (column[rows] for column in self._columns)
        return ProblemCounts(self._named(source, self._problems[0][rows]), n, c, int(errors.sum()))

    @cached_property
    def _slices(self) -> dict[tuple[str, int, str], slice]:
        """By run, step and benchmark, the rows of the table."""
        if self.empty:
            return {}
        (run, runs), (source, sources) = (decoded(self.table, name) for name in ("run_id", "source"))
        step = self.table["step"].to_numpy()
        starts = _starts(run, step, source).tolist()
        return {
            (runs[run[start]], int(step[start]), sources[source[start]]): slice(start, end)
            for start, end in zip(starts, [*starts[1:], len(step)], strict=True)
        }

    @cached_property
    def _columns(self) -> tuple[Whole, Whole, Whole]:
        n, c, e = (self.table[name].to_numpy().astype(np.int64) for name in ("n", "correct", "errors"))
        return n, c, e

    @cached_property
    def _problems(self) -> tuple[Whole, list[str]]:
        return decoded(self.table, "problem_id")

    def _named(self, source: str, codes: Whole) -> tuple[tuple[str, str], ...]:
        """The names (benchmark, id) of problems; the same object for the same problems, which runs of a study share."""
        key = (source, codes.tobytes())
        if key not in self._interned:
            names = self._problems[1]
            self._interned[key] = tuple((source, names[code]) for code in codes.tolist())
        return self._interned[key]

    @cached_property
    def _interned(self) -> dict[tuple[str, bytes], tuple[tuple[str, str], ...]]:
        return {}


def _starts(*columns: Whole) -> Whole:
    """The first row of every group of adjacent rows that are equal in these columns."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def counted(samples: pa.Table, step: int) -> pa.Table:
    """The table `counts`, without run_id, of the samples of one evaluation: by benchmark and problem. samples: source,
    problem_id, outcome."""
    (source, sources), (problem, problems) = (decoded(samples, name) for name in ("source", "problem_id"))
    outcome, outcomes = decoded(samples, "outcome")
    is_correct, is_error = (outcome == (outcomes.index(name) if name in outcomes else -1) for name in _OUTCOMES)
    order = np.lexsort((_rank(problems)[problem], _rank(sources)[source]))
    starts = _starts(source[order], problem[order])
    correct, errors = (np.add.reduceat(mark[order].astype(np.int64), starts) for mark in (is_correct, is_error))
    total, first = np.diff([*starts.tolist(), len(order)]), order[starts]
    return pa.table(
        {
            "step": pa.array(np.full(len(starts), step), pa.int64()),
            "source": pa.DictionaryArray.from_arrays(pa.array(source[first], pa.int32()), pa.array(sources)),
            "problem_id": pa.DictionaryArray.from_arrays(pa.array(problem[first], pa.int32()), pa.array(problems)),
            "n": pa.array(total - errors, pa.int32()),
            "correct": pa.array(correct, pa.int32()),
            "errors": pa.array(errors, pa.int32()),
        }
    )


_OUTCOMES = ("correct", "error")


def _rank(names: list[str]) -> Whole:
    """The rank of each name in sorted order."""
    return np.argsort(np.argsort(names))
