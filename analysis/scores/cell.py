"""A table's cell: the score of an arm on a benchmark over its seeds, with its uncertainty or the reason it is empty."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.frames.frames import Frames, remembered
from analysis.scores.arm import Arm
from analysis.scores.contrast import Scores, paired
from analysis.scores.measured import Point, at, mean_of, scores
from analysis.scores.metric import Kind, Metric
from rlvr.ledger.cause import State
from rlvr.metrics import VALIDATION

NOT_MEASURED = "not measured"  # the runs were evaluated, but have no value of the metric
REASONS = (  # why a cell is empty, the gravest first
    *(State.DIVERGED, State.FAILED, State.LOST, State.UNREADABLE, State.PREEMPTED, State.PRUNED),
    *(State.RUNNING, State.QUEUED, State.PLANNED, State.MISSING, "not evaluated", NOT_MEASURED),
)


def gravest(reasons: Collection[str]) -> str:
    """Of several reasons for an empty cell the one that is shown; `missing` without any."""
    return next((str(reason) for reason in REASONS if reason in reasons), "missing")


def why_absent(arm: Arm, counted: Collection[str]) -> list[str]:
    """Why each of the other runs of an arm does not count: how it ended, or `not evaluated`. counted: ids of runs."""
    states = [run.state for run in arm.runs if run.run_id not in counted]
    return ["not evaluated" if state == State.FINISHED else state for state in states]


@dataclass(frozen=True)
class Cell:
    """The mean of the finished seeds, each at its own point of training.

    state: ok | partial (some planned seed is missing) | without scores one of REASONS. errors: samples whose verifier
    failed. diverged: runs that diverged. possible: the range of means that there can be.
    """

    mean: float = math.nan
    scores: Scores | None = None
    planned: int = 0
    errors: int = 0
    state: str = "missing"
    diverged: int = 0
    possible: tuple[float, float] = (-math.inf, math.inf)

    @classmethod
    def of(cls, scores: Scores, planned: int, reason: str = "not evaluated") -> Cell:
        """The cell of scores by seed; with the reason as its state if they have no mean."""
        mean = mean_of(scores)
        state = "ok" if len(scores.seeds) == planned else "partial"
        return cls(mean, scores, planned, 0, state if math.isfinite(mean) else reason)

    @property
    def seeds(self) -> int:
        return len(self.scores.seeds) if self.scores else 0

    @property
    def problems(self) -> int:
        """Number of problems with a value in some seed; 0 for one number per run."""
        return self._all_problems - self.undefined

    @property
    def undefined(self) -> int:
        """Number of problems without a value in any seed, such as those with fewer judged samples than k of pass@k."""
        return int(np.isnan(self.scores.values).all(0).sum()) if self.scores and self._all_problems else 0

    @property
    def _all_problems(self) -> int:
        return len(self.scores.problems) if self.scores and self.scores.benchmark is not None else 0

    @property
    def empty(self) -> bool:
        return not math.isfinite(self.mean)

    @property
    def bounded(self) -> bool:
        """Whether all problems of some benchmark have the same score, so that a bound is part of the interval."""
        return self._complete is not None and self._complete.summary().bounded

    @property
    def _complete(self) -> Scores | None:
        complete = self.scores.complete() if self.scores else None
        return complete if complete and complete.problems else None

    def record(self) -> dict[str, Any]:
        """The cell as columns of a table's data."""
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
        """The 95 % interval about the mean; (NaN, NaN) if nothing is repeated. With one seed it holds for these runs
        alone, not for the arm. It ends where what is possible ends, which takes nothing from its coverage."""
        if self._complete is None or self.empty:
            return math.nan, math.nan
        return self.ends(self._complete.summary().interval().half)

    def ends(self, half: float) -> tuple[float, float]:
        """The ends of an interval about the mean, cut to the range of possible means; NaN for a half that is NaN."""
        low, high = np.clip([self.mean - half, self.mean + half], *self.possible).tolist()
        return low, high


@remembered
def cell(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...]) -> Cell:
    """The score of an arm at the last evaluation of its finished runs; benchmarks have equal weights."""
    points = last_points(frames, arm)
    if metric.kind == Kind.REACH:  # runs that diverged count: they reach no more
        lost = {run.run_id: frames.digest.steps(run.run_id) for run in arm.runs if run.state == State.DIVERGED}
        points |= {run_id: at(steps[-1]) for run_id, steps in lost.items() if steps}
    return cell_at(frames, metric, sources, points, planned=len(arm.runs), reasons=why_absent(arm, points))


def last_points(frames: Frames, arm: Arm) -> dict[str, Point]:
    """The last evaluation of each finished run that was evaluated after step 0."""
    steps = {run.run_id: frames.digest.steps(run.run_id) for run in arm.runs if run.state == State.FINISHED}
    return {run_id: at(evaluated[-1]) for run_id, evaluated in steps.items() if evaluated and evaluated[-1] > 0}


def validation_scores(frames: Frames, arm: Arm, metric: Metric) -> dict[str, float]:
    """By run, the mean of a metric over the benchmarks of the validation split at its last evaluation; NaN for a run
    without it. The arm's finished runs that were evaluated."""
    means: dict[str, float] = {}
    for run_id, point in last_points(frames, arm).items():
        names = [n for n in frames.digest.names(run_id) if n.startswith(VALIDATION) and n.endswith(f"/{metric.key}")]
        values = [frames.digest.logged(run_id, name, point.after) for name in names]
        means[run_id] = float(np.mean(values)) if values else math.nan
    return means


def base_cell(frames: Frames, arms: Sequence[Arm], metric: Metric, sources: Sequence[str]) -> Cell:
    """The score of the base policy: the evaluation at step 0 of one run per seed, since runs of one seed share it."""
    by_seed: dict[int, str | None] = {}
    for run in (run for arm in sharing_base(arms) for run in arm.runs):
        # Unfinished runs count too: at step 0 every run evaluates the base policy.
        if by_seed.get(run.seed) is None:
            by_seed[run.seed] = run.run_id if 0 in frames.digest.steps(run.run_id) else None
    run_ids = tuple(run_id for run_id in by_seed.values() if run_id is not None)
    return _at_step_0(frames, metric, tuple(sources), run_ids, len(by_seed))


def sharing_base(arms: Sequence[Arm]) -> list[Arm]:
    """The arms of a setting that start from one policy: not those of programs that read no `model`, which make one of
    their own; but one of these if it is alone."""
    sharing = [arm for arm in arms if arm.first.knob("model") or not arm.first.knob("program")]
    return sharing or (list(arms) if len(arms) == 1 else [])


@remembered
def _at_step_0(
    frames: Frames, metric: Metric, sources: tuple[str, ...], run_ids: tuple[str, ...], planned: int
) -> Cell:
    reasons = ["missing"] * (planned - len(run_ids))
    return cell_at(frames, metric, sources, dict.fromkeys(run_ids, at(0)), planned=planned, reasons=reasons)


def cell_at(
    frames: Frames,
    metric: Metric,
    sources: Sequence[str],
    points: Mapping[str, Point],
    *,
    planned: int,
    reasons: Sequence[str],
) -> Cell:
    """The score of runs of one arm, each at a point of training. points: by run that counts. reasons: why each of the
    other planned runs does not count."""
    diverged = sum(reason == State.DIVERGED for reason in reasons)
    if not points:
        return Cell(planned=planned, state=gravest(reasons), diverged=diverged)
    measured = scores(frames, metric, sources, points)
    errors = _errors(frames, sources, points) if metric.per_problem else 0
    mean = math.nan if measured is None else mean_of(measured)
    if measured is None or not math.isfinite(mean):
        return Cell(planned=planned, errors=errors, state=NOT_MEASURED, diverged=diverged)
    state = "ok" if len(points) == planned else "partial"
    return Cell(mean, measured, planned, errors, state, diverged, metric.possible)


def _errors(frames: Frames, sources: Sequence[str], points: Mapping[str, Point]) -> int:
    if not frames.judgements.num_errors:
        return 0
    evaluations = [
        frames.problem_counts(i, step, source)
        for i, point in points.items()
        for step, _ in point.parts
        for source in sources
    ]
    return sum(judged.errors for judged in evaluations if judged is not None)


def combine(cells: Sequence[Cell]) -> Cell:
    """The plain mean of arms, over η or over a family. It is empty if one of the cells is, since a mean over fewer arms
    is another quantity. Arms answered the same problems with the same seeds, and are averaged value by value.
    """
    if len(cells) == 1:
        return cells[0]
    planned = max((c.planned for c in cells), default=0)
    errors, diverged = sum(c.errors for c in cells), sum(c.diverged for c in cells)
    empty = [c.state for c in cells if c.empty]
    if empty or not cells:
        return Cell(planned=planned, errors=errors, state=gravest(empty), diverged=diverged)
    state = "ok" if all(c.state == "ok" for c in cells) else "partial"
    mean = float(np.mean([c.mean for c in cells]))
    return Cell(
        mean, averaged([c.scores for c in cells if c.scores]), planned, errors, state, diverged, cells[0].possible
    )


def averaged(parts: Sequence[Scores], weights: Sequence[float] = ()) -> Scores | None:
    """The mean, or weighted sum, of the scores of arms on the seeds and problems that all have; None without any."""
    shares = np.array(weights or [1 / len(parts)] * len(parts))
    alike = paired(parts)
    if not alike:
        return None
    noises = [part.noise for part in alike if part.noise is not None]
    noise = np.tensordot(shares**2, np.array(noises), 1) if len(noises) == len(alike) else None
    return replace(alike[0], values=np.tensordot(shares, np.array([part.values for part in alike]), 1), noise=noise)
