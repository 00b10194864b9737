"""A table's cell: what an arm scores on a benchmark, over its seeds, with its uncertainty or the reason it is empty."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.frame import Frame
from analysis.frames.load import Frames
from analysis.scores.arms import Arm
from analysis.scores.stats import Array, avg_values, bootstrap, interval, mean, pass_values
from rlvr.ledger.cause import State

AVERAGE = "Average"
# Of several reasons for an empty cell the gravest is shown.
_GRAVEST_FIRST = (
    *(State.DIVERGED, State.FAILED, State.LOST, State.UNREADABLE, State.PREEMPTED, State.PRUNED),
    *(State.RUNNING, State.QUEUED, State.MISSING),
)
REASONS = (*(state.value for state in _GRAVEST_FIRST), "not evaluated")


@dataclass(frozen=True)
class Metric:
    """avg@k or pass@k as the runs log it: `evaluation/<benchmark>/<kind>_at_<k>`."""

    kind: str
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"


@dataclass(frozen=True)
class Cell:
    """mean of the finished seeds; replicates [R] of its bootstrap, None where there is nothing to resample."""

    mean: float = math.nan
    replicates: Array | None = None
    problems: int = 0  # per seed; 0: only the logged mean is known
    seeds: int = 0  # that count
    planned: int = 0
    errors: int = 0
    state: str = "missing"  # ok | partial | one of REASONS

    def record(self) -> dict[str, Any]:
        low, high = interval(self.replicates) if self.replicates is not None else (math.nan, math.nan)
        return {
            "mean": self.mean,
            "low": low,
            "high": high,
            "problems": self.problems,
            "seeds": self.seeds,
            "planned": self.planned,
            "errors": self.errors,
            "state": self.state,
        }


Scores = dict[tuple[Metric, str], Cell]


def benchmarks(frames: Frames, run_ids: Iterable[str]) -> tuple[list[str], list[Metric]]:
    """(benchmarks, metrics) that these runs report: every avg@n, then every pass@k, by k."""
    names = frames.evaluations.loc[frames.evaluations["run_id"].isin(list(run_ids)), "name"].unique()
    found = [m.groups() for m in (re.fullmatch(r"evaluation/(.+)/(avg|pass)_at_(\d+)", n) for n in names) if m]
    metrics = {Metric(kind, int(k)) for _, kind, k in found}
    return sorted({source for source, _, _ in found}), sorted(metrics, key=lambda m: (m.kind, m.k))


def score(frames: Frames, arm: Arm, sources: Sequence[str], metrics: Sequence[Metric]) -> Scores:
    """What an arm scores at the last evaluation of its finished runs; `Average` weighs benchmarks alike."""
    key = ("score", arm.group_id, tuple(sources), tuple(metrics))
    if key not in frames.cache:
        state = frames.runs.set_index("run_id")["state"]
        finished = [i for i in arm.run_ids if state[i] == State.FINISHED]
        at = frames.evaluations.groupby("run_id")["step"].max()
        last = {i: int(at[i]) for i in finished if at.get(i, 0) > 0}
        reasons = [state[i] for i in arm.run_ids if i not in finished] + ["not evaluated"] * (len(finished) - len(last))
        frames.cache[key] = _score(frames, last, len(arm.run_ids), reasons, sources, metrics)
    return frames.cache[key]


def score_base(frames: Frames, found: Sequence[Arm], sources: Sequence[str], metrics: Sequence[Metric]) -> Scores:
    """What the base policy scores: evaluation at step 0, once per seed (runs of one seed evaluate the same policy)."""
    runs = frames.runs.set_index("run_id").loc[[i for a in found for i in a.run_ids]]
    at_zero = set(frames.evaluations.query("step == 0")["run_id"])
    # Not finished runs count too: step 0 is the base policy whatever became of the run.
    first = {seed: next((i for i in part.index if i in at_zero), None) for seed, part in runs.groupby("seed")}
    steps = {i: 0 for i in first.values() if i is not None}
    return _score(frames, steps, len(first), ["missing"] * (len(first) - len(steps)), sources, metrics)


def _score(
    frames: Frames,
    steps: dict[str, int],
    planned: int,
    reasons: list[str],
    sources: Sequence[str],
    metrics: Sequence[Metric],
) -> Scores:
    reason = next((r for r in REASONS if r in reasons), "missing")
    state = reason if not steps else "ok" if len(steps) == planned else "partial"
    scores: Scores = {}
    for source in sources:
        tables = _counts(frames, steps, source)
        for metric in metrics:
            scores[metric, source] = _cell(frames, steps, source, metric, tables, planned, state)
    if len(sources) > 1:
        for metric in metrics:
            parts = [scores[metric, s] for s in sources]
            scores[metric, AVERAGE] = replace(combine(parts), problems=sum(c.problems for c in parts))
    return scores


def _cell(
    frames: Frames,
    steps: dict[str, int],
    source: str,
    metric: Metric,
    tables: tuple[Frame, Frame, int] | None,
    planned: int,
    state: str,
) -> Cell:
    if not steps:
        return Cell(planned=planned, state=state)
    if tables is not None:
        n, c, errors = tables
        counted = np.nan_to_num(n.to_numpy()).astype(int), np.nan_to_num(c.to_numpy()).astype(int)
        values = avg_values(*counted) if metric.kind == "avg" else pass_values(*counted, metric.k)
        replicates, problems = bootstrap(values, key=source), values.shape[1]
    else:
        values, errors, problems = _logged(frames, steps, source, metric), 0, 0
        replicates = bootstrap(values) if np.isfinite(values).sum() > 1 else None
    if not np.isfinite(values).any():
        return Cell(planned=planned, errors=errors, state="not evaluated")
    return Cell(mean(values), replicates, problems, len(steps), planned, errors, state)


def _counts(frames: Frames, steps: dict[str, int], source: str) -> tuple[Frame, Frame, int] | None:
    """(n, c, errors): tables seeds x problems and the number of samples left out; None unless every run has samples."""
    parts = {i: frames.counts_of.get((i, step, source)) for i, step in steps.items()}
    if not parts or any(part is None for part in parts.values()):
        return None
    n = pd.DataFrame({i: part["n"] for i, part in parts.items() if part is not None}).T
    c = pd.DataFrame({i: part["correct"] for i, part in parts.items() if part is not None}).T
    return n, c, sum(int(part["errors"].sum()) for part in parts.values() if part is not None)


def _logged(frames: Frames, steps: dict[str, int], source: str, metric: Metric) -> Array:
    """[S, 1] the mean that each run logged, where its samples are not at hand."""
    m = frames.evaluations
    name = f"evaluation/{source}/{metric.kind}_at_{metric.k}"
    rows = m[(m["name"] == name) & (m["run_id"].map(steps) == m["step"])].set_index("run_id")["value"]
    return rows.reindex(list(steps)).to_numpy(float)[:, None]


def combine(cells: Sequence[Cell]) -> Cell:
    """The plain mean of cells: over benchmarks, over eta, over a family. Empty if one of them is.

    Cells share their draws of seeds and problems where these are the same, so averaging replicates keeps what the
    cells have in common.
    """
    planned = max((c.planned for c in cells), default=0)
    empty = [c for c in cells if not math.isfinite(c.mean)]
    errors = sum(c.errors for c in cells)
    if empty or not cells:
        reason = next((r for r in REASONS if any(c.state == r for c in empty)), "missing")
        return Cell(planned=planned, errors=errors, state=reason)
    state = "ok" if all(c.state == "ok" for c in cells) else "partial"
    known = [c.replicates for c in cells if c.replicates is not None]
    replicates = np.mean(known, axis=0) if len(known) == len(cells) else None
    return Cell(
        float(np.mean([c.mean for c in cells])),
        replicates,
        max(c.problems for c in cells),
        min(c.seeds for c in cells),
        planned,
        errors,
        state,
    )
