"""Judged samples of every evaluation, counted by problem: the input of avg@n, pass@k and their differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from analysis.frames import cache
from analysis.frames.cache import decoded
from analysis.frames.samples import left_out, read_table
from rlvr.ledger import layout

COLUMNS = ("run_id", "step", "source", "problem_id", "n", "correct", "errors")


@dataclass(frozen=True)
class ProblemCounts:
    """The counts of one evaluation on one benchmark: judged samples n [P] and correct ones c [P], by problem.

    problems: (benchmark, id). errors: number of samples whose verifier failed; they are not in n.
    """

    problems: tuple[tuple[str, str], ...]
    n: NDArray[np.int64]
    c: NDArray[np.int64]
    errors: int


class Counts:
    """The counts of the runs of a home, by run, step, benchmark and problem."""

    def __init__(self, home: Path, run_ids: list[str]) -> None:
        self._home, self._files = home, {i: layout.evaluations(layout.run(home, i)) for i in run_ids}
        files = self._files
        states = {i: cache.state_of(of_run) for i, of_run in files.items()}
        table = cache.rows(home, "counts", states, lambda ids: cache.in_threads(_count, [files[i] for i in ids]))
        self._table = table if table.num_rows else _NONE
        self.states: Mapping[str, str] = states  # of the files of each run

    @classmethod
    def from_table(cls, table: pa.Table) -> Counts:
        """The counts in a table with the columns COLUMNS. Rows of one evaluation and benchmark must be adjacent."""
        counts = cls.__new__(cls)
        counts._table, counts.states = table if table.num_rows else _NONE, {}
        return counts

    @property
    def table(self) -> pa.Table:
        """The columns COLUMNS."""
        return self._table

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The columns COLUMNS."""
        return self._table.to_pandas().astype({"run_id": str, "source": str, "problem_id": str})

    @property
    def empty(self) -> bool:
        return self._table.num_rows == 0

    @cached_property
    def most_samples(self) -> int:
        """The largest number of judged samples of a problem; 0 if there are no samples."""
        return int(self._columns[0].max()) if not self.empty else 0

    @cached_property
    def num_errors(self) -> int:
        """Number of samples, in all evaluations, whose verifier failed."""
        return int(self._columns[2].sum())

    def notes(self) -> list[str]:
        """Notes of a report on samples and files that are left out."""
        read = {(run_id, step) for run_id, step, _ in self._slices} if not self.empty else set[tuple[str, int]]()
        damaged = [
            file
            for run_id, files in self._files.items()
            for file in files
            if (run_id, layout.step_of(file)) not in read
        ]
        notes = [left_out(self._home, file) for file in damaged]
        if not self.num_errors:
            return notes
        failed = "evaluation sample(s) whose verifier failed"
        return [f"{self.num_errors} {failed} are left out of every average and counted.", *notes]

    @cached_property
    def _slices(self) -> dict[tuple[str, int, str], slice]:
        """By run, step and benchmark, the rows of the table."""
        (run, runs), (source, sources) = (decoded(self._table, name) for name in ("run_id", "source"))
        step = self._table["step"].to_numpy()
        changes = (np.diff(run) != 0) | (np.diff(step) != 0) | (np.diff(source) != 0)
        starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
        ends = [*starts[1:], len(step)]
        return {
            (runs[run[start]], int(step[start]), sources[source[start]]): slice(start, end)
            for start, end in zip(starts, ends, strict=True)
        }

    @cached_property
    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        n, c, e = (self._table[name].to_numpy().astype(np.int64) for name in ("n", "correct", "errors"))
        return n, c, e

    @cached_property
    def _problems(self) -> tuple[NDArray[np.int64], list[str]]:
        return decoded(self._table, "problem_id")

    def of(self, run_id: str, step: int, source: str) -> ProblemCounts | None:
        """The counts of an evaluation on a benchmark; None if its samples are not available."""
        rows = None if self.empty else self._slices.get((run_id, step, source))
        if rows is None:
            return None
        n, c, errors = (column[rows] for column in self._columns)
        return ProblemCounts(self._named(source, self._problems[0][rows]), n, c, int(errors.sum()))

    def _named(self, source: str, codes: NDArray[np.int64]) -> tuple[tuple[str, str], ...]:
        """The names (benchmark, id) of problems; the same object for the same problems, which runs of a study share."""
        key = (source, codes.tobytes())
        if key not in self._interned:
            names = self._problems[1]
            self._interned[key] = tuple((source, names[code]) for code in codes.tolist())
        return self._interned[key]

    @cached_property
    def _interned(self) -> dict[tuple[str, bytes], tuple[tuple[str, str], ...]]:
        return {}


def _count(files: list[Path]) -> pa.Table:
    read = {file: read_table(file, ("source", "problem_id", "outcome")) for file in files}
    parts = [_of_evaluation(table, layout.step_of(file) or 0) for file, table in read.items() if table is not None]
    table = pa.concat_tables(parts) if parts else _NONE.drop_columns(["run_id"])
    return table.unify_dictionaries()


_OUTCOMES = ("correct", "error")


def _rank(names: list[str]) -> NDArray[np.int64]:
    """The rank of each name in sorted order."""
    return np.argsort(np.argsort(names))


def _of_evaluation(samples: pa.Table, step: int) -> pa.Table:
    (source, sources), (problem, problems) = (decoded(samples, name) for name in ("source", "problem_id"))
    outcome, outcomes = decoded(samples, "outcome")
    marks = [
        outcome == outcomes.index(name) if name in outcomes else np.zeros(len(outcome), bool) for name in _OUTCOMES
    ]
    order = np.lexsort((_rank(problems)[problem], _rank(sources)[source]))
    changes = (np.diff(source[order]) != 0) | (np.diff(problem[order]) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]) if len(order) else np.zeros(0, np.int64)
    correct, errors = (np.add.reduceat(mark[order].astype(np.int64), starts) for mark in marks)
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


_NONE = pa.table(
    {
        **{name: pa.array([], pa.string()).dictionary_encode() for name in ("run_id",)},
        "step": pa.array([], pa.int64()),
        **{name: pa.array([], pa.string()).dictionary_encode() for name in ("source", "problem_id")},
        **{name: pa.array([], pa.int32()) for name in ("n", "correct", "errors")},
    }
)
