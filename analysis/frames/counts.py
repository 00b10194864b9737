"""Judged samples of every evaluation, counted by problem: the input of avg@n, pass@k and their differences."""

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
        return int(self.table["n"].to_numpy().max(initial=0))

    @cached_property
    def num_errors(self) -> int:
        """Number of samples, in all evaluations, whose verifier failed."""
        return int(self.table["errors"].to_numpy().sum())

    def of(self, run_id: str, step: int, source: str) -> ProblemCounts | None:
        """The counts of an evaluation on a benchmark; None if its samples are not available."""
        return self._of.get((run_id, step, source))

    @cached_property
    def _of(self) -> dict[tuple[str, int, str], ProblemCounts]:
        """By run, step and benchmark."""
        if self.empty:
            return {}
        names = ("run_id", "source", "problem_id")
        (run, runs), (source, sources), (problem, problems) = (decoded(self.table, name) for name in names)
        counts = ("step", "n", "correct", "errors")
        step, n, c, errors = (self.table[name].to_numpy().astype(np.int64) for name in counts)
        changes = np.any([np.diff(column) != 0 for column in (run, step, source)], axis=0)
        starts = [0, *(np.flatnonzero(changes) + 1).tolist()]  # of adjacent rows that are equal in these columns
        interned: dict[tuple[str, bytes], tuple[tuple[str, str], ...]] = {}  # most evaluations have the same problems
        of: dict[tuple[str, int, str], ProblemCounts] = {}
        for start, end in zip(starts, [*starts[1:], len(step)], strict=True):
            rows, name = slice(start, end), sources[source[start]]
            key = (name, problem[rows].tobytes())
            if key not in interned:
                interned[key] = tuple((name, problems[code]) for code in problem[rows].tolist())
            judged = ProblemCounts(interned[key], n[rows], c[rows], int(errors[rows].sum()))
            of[runs[run[start]], int(step[start]), name] = judged
        return of


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
