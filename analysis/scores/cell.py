"""A table's cell: what an arm scores on a benchmark, over its seeds, with its uncertainty or the reason it is empty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.frames.frames import Frames
from analysis.scores.arm import Arm
from analysis.scores.contrast import Scores
from analysis.scores.crossed import by_benchmark
from analysis.scores.measured import Point, at, scores
from analysis.scores.metric import Metric
from rlvr.ledger.cause import State
from rlvr.metrics import VALIDATION

# Of several reasons for an empty cell the gravest is shown.
_GRAVEST_FIRST = (
    *(State.DIVERGED, State.FAILED, State.LOST, State.UNREADABLE, State.PREEMPTED, State.PRUNED),
    *(State.RUNNING, State.QUEUED, State.PLANNED, State.MISSING),
)
REASONS = (*(state.value for state in _GRAVEST_FIRST), "not evaluated")


@dataclass(frozen=True)
class Cell:
    """The mean of the finished seeds, each at its own point of training. Without scores: `state` says why.

    state: ok | partial (some planned seed is not there) | one of REASONS. errors: samples whose verifier failed.
    """

    mean: float = math.nan
    scores: Scores | None = None
    planned: int = 0
    errors: int = 0
    state: str = "missing"
    diverged: int = 0

    @property
    def seeds(self) -> int:
        return len(self.scores.seeds) if self.scores else 0

    @property
    def problems(self) -> int:
        """Of each seed; 0: one number per run."""
        return len(self.scores.problems) if self.scores and self.scores.benchmark is not None else 0

    @property
    def empty(self) -> bool:
        return not math.isfinite(self.mean)

    @property
    def alike(self) -> bool:
        """Whether every problem scored alike."""
        return self.problems > 0 and self._complete is not None and self._complete.summary().alike

    @property
    def _complete(self) -> Scores | None:
        """The problems for which every seed has a value; None where there are none."""
        kept = self.scores.complete() if self.scores else None
        return kept if kept and kept.problems else None

    def record(self) -> dict[str, Any]:
        low, high = self.interval()
        return {
            "mean": self.mean,
            "low": low,
            "high": high,
            "problems": self.problems,
            "seeds": self.seeds,
            "planned": self.planned,
            "diverged": self.diverged,
            "errors": self.errors,
            "state": self.state,
        }

    def interval(self) -> tuple[float, float]:
        """95 %, about the mean; (NaN, NaN) where nothing repeats. With one seed it speaks of the runs."""
        if self._complete is None or self.empty:
            return math.nan, math.nan
        half = self._complete.summary().interval().half
        return self.mean - half, self.mean + half


def cell(frames: Frames, arm: Arm, metric: Metric, sources: Sequence[str]) -> Cell:
    """What an arm scores at the last evaluation of its finished runs; several benchmarks weigh alike."""
    return _kept(frames, ("cell", arm.group_id, metric, tuple(sources)), lambda: _last(frames, arm, metric, sources))


def _last(frames: Frames, arm: Arm, metric: Metric, sources: Sequence[str]) -> Cell:
    points = last_points(frames, arm)
    reasons = [run.state for run in arm.runs if run.state != State.FINISHED]
    reasons += ["not evaluated"] * (len(arm.runs) - len(reasons) - len(points))
    return cell_at(frames, metric, sources, points, planned=len(arm.runs), reasons=reasons)


def last_points(frames: Frames, arm: Arm) -> dict[str, Point]:
    """The last evaluation of each finished run that was evaluated after step 0."""
    steps = {run.run_id: frames.digest.steps(run.run_id) for run in arm.runs if run.state == State.FINISHED}
    return {run_id: at(found[-1]) for run_id, found in steps.items() if found and found[-1] > 0}


def validated(frames: Frames, arm: Arm, metric: Metric) -> float:
    """Mean over finished runs, and over the benchmarks of the validation split, of what their last evaluation measured
    there; NaN where a run measured nothing."""
    means: list[float] = []
    for run_id, point in last_points(frames, arm).items():
        names = [n for n in frames.digest.names(run_id) if n.startswith(VALIDATION) and n.endswith(f"/{metric.key}")]
        values = [frames.digest.logged(run_id, name, point.after) for name in names]
        means.append(float(np.mean(values)) if values else math.nan)
    return float(np.mean(means)) if means else math.nan


def base_cell(frames: Frames, arms: Sequence[Arm], metric: Metric, sources: Sequence[str]) -> Cell:
    """What the base policy scores: evaluation at step 0, once per seed (runs of one seed evaluate the same policy)."""
    by_seed: dict[int, str | None] = {}
    for run in (run for arm in arms for run in arm.runs):
        # Not finished runs count too: step 0 is the base policy whatever became of the run.
        if by_seed.get(run.seed) is None:
            by_seed[run.seed] = run.run_id if 0 in frames.digest.steps(run.run_id) else None
    points = {run_id: at(0) for run_id in by_seed.values() if run_id is not None}
    key = ("cell", "base", metric, tuple(sources), tuple(points))
    reasons = ["missing"] * (len(by_seed) - len(points))
    return _kept(frames, key, lambda: cell_at(frames, metric, sources, points, planned=len(by_seed), reasons=reasons))


def _kept(frames: Frames, key: object, make: Any) -> Cell:
    if key not in frames.cache:
        frames.cache[key] = make()
    return frames.cache[key]


def cell_at(
    frames: Frames,
    metric: Metric,
    sources: Sequence[str],
    points: Mapping[str, Point],
    *,
    planned: int,
    reasons: Sequence[str],
) -> Cell:
    """points: by run, those that count. reasons: why the others do not."""
    diverged = sum(reason == State.DIVERGED for reason in reasons)
    reason = next((r for r in REASONS if r in reasons), "missing")
    if not points:
        return Cell(planned=planned, state=reason, diverged=diverged)
    found = scores(frames, metric, sources, points)
    errors = _errors(frames, sources, points) if metric.per_problem else 0
    mean = math.nan if found is None else mean_of(found)
    if found is None or not math.isfinite(mean):
        return Cell(planned=planned, errors=errors, state="not evaluated", diverged=diverged)
    state = "ok" if len(points) == planned else "partial"
    return Cell(mean, found, planned, errors, state, diverged)


def _errors(frames: Frames, sources: Sequence[str], points: Mapping[str, Point]) -> int:
    if not frames.judgements.num_errors:
        return 0
    asked = [frames.judged(i, step, source) for i, p in points.items() for step, _ in p.parts for source in sources]
    return sum(judged.errors for judged in asked if judged is not None)


def mean_of(found: Scores) -> float:
    """Mean over all defined cells of each benchmark, benchmarks alike; NaN if one has none."""
    parts = by_benchmark(found.values, found.benchmark)
    if not all(np.isfinite(part).any() for part in parts):
        return math.nan
    return float(np.mean([np.nanmean(part) for part in parts]))


def combine(cells: Sequence[Cell]) -> Cell:
    """The plain mean of arms: over η, over a family. Empty if one of them is: a mean over fewer is another quantity.

    The parts answered the same problems under the same seeds, and are averaged cell by cell.
    """
    if len(cells) == 1:
        return cells[0]
    planned = max((c.planned for c in cells), default=0)
    errors, diverged = sum(c.errors for c in cells), sum(c.diverged for c in cells)
    empty = [c for c in cells if c.empty]
    if empty or not cells:
        reason = next((r for r in REASONS if any(c.state == r for c in empty)), "missing")
        return Cell(planned=planned, errors=errors, state=reason, diverged=diverged)
    state = "ok" if all(c.state == "ok" for c in cells) else "partial"
    mean = float(np.mean([c.mean for c in cells]))
    return Cell(mean, averaged([c.scores for c in cells if c.scores]), planned, errors, state, diverged)


def averaged(parts: Sequence[Scores], weights: Sequence[float] = ()) -> Scores | None:
    """The mean, or weighted sum, of several arms on the seeds and problems that all have; None if there are none."""
    shares = np.array(weights or [1 / len(parts)] * len(parts))
    first, *others = parts
    seeds = [s for s in first.seeds if all(s in other.seeds for other in others)]
    shared = set(first.problems).intersection(*(other.problems for other in others))
    columns = np.array([i for i, p in enumerate(first.problems) if p in shared], dtype=np.int64)
    if not seeds or not len(columns):
        return None
    kept = first.of_seeds(seeds).of_problems(columns)
    aligned = [kept]
    for other in others:
        place = {p: i for i, p in enumerate(other.problems)}
        chosen = np.array([place[p] for p in kept.problems], dtype=np.int64)
        aligned.append(other.of_seeds(seeds).of_problems(chosen))
    noises = [part.noise for part in aligned if part.noise is not None]
    noise = np.tensordot(shares**2, np.array(noises), 1) if len(noises) == len(aligned) else None
    return replace(kept, values=np.tensordot(shares, np.array([part.values for part in aligned]), 1), noise=noise)
