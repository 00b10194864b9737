"""The few numbers that tables ask of a run: what an evaluation logged, means and sums of training up to then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

EVALUATION = "evaluation/"
TAIL = 0.1


@dataclass(frozen=True)
class Judged:
    """Judged samples n [P] and correct ones c [P] of the problems of one benchmark."""

    problems: tuple[tuple[str, str], ...]  # (benchmark, id)
    n: NDArray[np.int64]
    c: NDArray[np.int64]
    errors: int  # samples whose verifier failed


class Digest:
    def __init__(self, metrics: pd.DataFrame) -> None:
        self._by = (
            {k: g.set_index("step")["value"] for k, g in metrics.groupby(["run_id", "name"])} if len(metrics) else {}
        )
        self._names = {}
        for run_id, name in self._by:
            self._names.setdefault(run_id, []).append(name)

    def names(self, run_id: str) -> list[str]:
        return self._names.get(run_id, [])

    def steps(self, run_id: str) -> list[int]:
        """Steps at which it was evaluated."""
        return sorted(
            {int(s) for n in self.names(run_id) if n.startswith(EVALUATION) for s in self._by[run_id, n].index}
        )

    def last(self, run_id: str) -> int:
        return max((int(self._by[run_id, n].index.max()) for n in self.names(run_id)), default=0)

    def logged(self, run_id: str, name: str, step: int) -> float:
        values = self._by.get((run_id, name))
        return float(values.get(step, np.nan)) if values is not None else np.nan

    def mean(self, run_id: str, name: str, step: int) -> float:
        values = self._by.get((run_id, name))
        if values is None:
            return np.nan
        return float(values[(values.index > step * (1 - TAIL)) & (values.index <= step)].mean())

    def sum(self, run_id: str, name: str, step: int) -> float:
        values = self._by.get((run_id, name))
        return float(values[values.index <= step].sum()) if values is not None else np.nan
