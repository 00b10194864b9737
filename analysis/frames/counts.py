"""Judged samples of every evaluation, counted by problem: the input of avg@n, pass@k and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.frames.tables import TEXT, WHOLE, decoded

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
        if self.empty:
            return {}
        (run, runs), (source, sources) = (decoded(self.table, name) for name in ("run_id", "source"))
        step = self.table["step"].to_numpy()
        changes = np.any([np.diff(column) != 0 for column in (run, step, source)], axis=0)
        starts = [0, *(np.flatnonzero(changes) + 1).tolist()]  # of adjacent rows that are equal in these columns
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


def counted(samples: pa.Table, step: int) -> pa.Table:
    """The table `counts`, without run_id, of the samples of one evaluation: by benchmark and problem. samples: source,
    problem_id, outcome."""
    compute: Any = pc  # pyarrow has no types of it
    plain = {name: samples[name].cast(TEXT) for name in ("source", "problem_id")}
    outcome = samples["outcome"].cast(TEXT)
    is_correct, is_error = (compute.equal(outcome, name).cast(WHOLE) for name in ("correct", "error"))
    groups = pa.table({**plain, "correct": is_correct, "error": is_error}).group_by(["source", "problem_id"])
    table = groups.aggregate([("correct", "sum"), ("error", "sum"), ("error", "count")])
    table = table.sort_by([("source", "ascending"), ("problem_id", "ascending")])
    errors = table["error_sum"]
    columns = {
        "step": pa.array(np.full(table.num_rows, step), WHOLE),
        **{name: table[name].dictionary_encode() for name in plain},
        "n": compute.subtract(table["error_count"], errors).cast(pa.int32()),
        "correct": table["correct_sum"].cast(pa.int32()),
        "errors": errors.cast(pa.int32()),
    }
    return pa.table(columns)
