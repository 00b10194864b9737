"""A saturating curve through the scores of an arm along training, and what it says of more steps.

The form is a sigmoid in log t (ScaleRL, arXiv:2510.13786, Eq. 1): y(t) = base + (asymptote − base)/(1 + (half/t)^rate),
at whose step `half` half of the gain is reached. For a given half and rate it is linear in base and asymptote: both are
solved for at every point of a grid of the other two, which finds the least squares of all draws of a bootstrap at once.

The spread is that of a bootstrap over seeds. Of S seeds it shows (S − 1)/S of the variance, and has S − 1 degrees of
freedom: deviations are widened by the one and measured by the quantiles of t. The band is simultaneous over the steps
(sup-t). It holds for these problems, and if the curve has this form.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.frames.frames import Frames, remembered
from analysis.scores import student
from analysis.scores.arm import Arm
from analysis.scores.crossed import LEAST_SEEDS, LEVEL, ROUNDING, Interval
from analysis.scores.metric import Metric
from analysis.scores.trajectory import cells_along

Array = NDArray[np.float64]

LEAST_EVALUATIONS = 5
DRAWS = 1000  # of the bootstrap
SEED = 20251013  # any constant: the same scores give the same curve
FARTHEST = 4.0  # times the last step, the largest `half` that is tried
RATES = np.geomspace(0.5, 6.0, 40)
HALVES = 100  # values of `half` that are tried
ROOM = 0.02  # an asymptote so far beyond what is possible is due to noise
MISFIT = 0.1  # of the range of the means: marks that are farther from the curve, and not by luck, follow no such curve
RARE = 0.01  # the chance that luck alone puts any of the marks so far away


@dataclass(frozen=True)
class Saturation:
    """A fitted curve: its parameters, and at `steps`, which go on to twice the last evaluation, its mean and its band.

    of_asymptote, of_twice: intervals of a single number each, of the asymptote and of twice the last evaluation.
    """

    seeds: int
    base: float
    asymptote: float
    half: float
    rate: float
    of_asymptote: Interval
    of_twice: Interval
    steps: Array
    mean: Array
    low: Array
    high: Array


@remembered
def saturation_of(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...]) -> Saturation | str:
    """The curve of an arm, over the seeds that were scored at every evaluation; or why there is none."""
    along = [(step, cell.scores.by_seed()) for step, cell in cells_along(frames, arm, metric, sources) if cell.scores]
    if not along:
        return "not evaluated"
    seeds = sorted(set.intersection(*({*scores.seeds} for _, scores in along)))
    values = np.hstack([scores.of_seeds(seeds).values for _, scores in along])
    return saturation(np.array([step for step, _ in along], float), values, metric.possible)


def saturation(steps: Array, scores: Array, possible: tuple[float, float] = (-math.inf, math.inf)) -> Saturation | str:
    """The curve through scores [S, T] of S seeds at T steps, in ascending order; or why there is none, in words."""
    S, last = len(scores), float(steps[-1])
    if S < LEAST_SEEDS:
        return f"{S} of at least {LEAST_SEEDS} seeds"
    if len(steps) < LEAST_EVALUATIONS:
        return f"{len(steps)} of at least {LEAST_EVALUATIONS} evaluations"
    if not np.isfinite(scores).all():
        return "an evaluation without a score"
    if not np.ptp(scores, axis=0).any():
        return "all seeds have the same scores"
    rng = np.random.default_rng(SEED)
    counts = np.vstack([np.ones(S), rng.multinomial(S, np.full(S, 1 / S), DRAWS)])
    different, draws = np.unique(counts, axis=0, return_inverse=True)  # three seeds have ten
    halves = np.geomspace(steps[steps > 0][0] / 2, FARTHEST * last, HALVES)
    half, rate = (grid.ravel() for grid in np.meshgrid(halves, RATES, indexing="ij"))
    base, gain, chosen = _least_squares(different @ scores / S, _risen(steps, half, rate), possible)
    base, gain, chosen = base[draws], gain[draws], chosen[draws]
    if _misses(scores, base[0] + gain[0] * _risen(steps, half[chosen[:1]], rate[chosen[:1]])[0]):
        return "its evaluations do not follow such a curve"
    if half[chosen[0]] > last:
        return "it has not bent: less than half of its change is seen"
    shown = np.linspace(steps[0], 2 * last, 61)
    curves = np.hstack([base[:, None] + gain[:, None] * _risen(shown, half, rate)[chosen], (base + gain)[:, None]])
    deviation = (curves[1:] - curves[0]) * math.sqrt(S / (S - 1))
    spread = np.maximum(deviation.std(0), math.sqrt(ROUNDING))
    own = float(student.critical(LEVEL, S - 1))
    size, along = np.linalg.eigh(np.cov((deviation / spread)[:, :-1], rowvar=False))
    alike = rng.standard_normal((DRAWS, S, len(size))) @ (along * np.sqrt(size.clip(0))).T  # seeds so correlated
    largest = np.abs(alike.mean(1) / alike.std(1, ddof=1)).max(1) * math.sqrt(S)
    factor = max(own, float(np.quantile(largest, LEVEL)))
    if own * spread[-1] > abs(float(scores[:, -1].mean() - scores[:, 0].mean())):
        return "it has not bent: its asymptote is uncertain by more than all that was gained"
    mean = np.clip(curves[0], *possible)
    low, high = (np.clip(curves[0, :-1] + sign * factor * spread[:-1], *possible) for sign in (-1, 1))
    ends = np.clip(curves[0] + own * np.outer([-1, 1], spread), *possible)
    twice, end = (Interval(float(ends[0, i]), float(ends[1, i])) for i in (-2, -1))
    parameters = (float(base[0]), float(mean[-1]), float(half[chosen[0]]), float(rate[chosen[0]]))
    return Saturation(S, *parameters, end, twice, shown, mean[:-1], low, high)


def _misses(scores: Array, fitted: Array) -> bool:
    """Whether the means of scores [S, T] miss the curve [T] at some step by more than the seeds' luck along training
    (what is left of the scores without the means of seeds and of steps) and by MISFIT of what they span."""
    (S, T), means = scores.shape, scores.mean(0)
    along = scores - scores.mean(1, keepdims=True) - means + means.mean()
    error = math.sqrt(float((along**2).sum()) / ((S - 1) * (T - 1) * S))
    by_luck = float(student.quantile(1 - RARE / (2 * T), (S - 1) * (T - 1))) * error
    return float(np.abs(means - fitted).max()) > max(by_luck, MISFIT * float(np.ptp(means)))


def _risen(steps: Array, half: Array, rate: Array) -> Array:
    """[K, T] the share of the gain that is reached at each step, for K pairs of half and rate."""
    with np.errstate(divide="ignore"):
        return 1 / (1 + (half[:, None] / steps) ** rate[:, None])


def _least_squares(
    curves: Array, risen: Array, possible: tuple[float, float]
) -> tuple[Array, Array, NDArray[np.int64]]:
    """(base, gain, index of the best shape) of each of N curves [N, T], of those of K shapes [K, T] whose asymptote is
    possible, or of all if none is."""
    centred = risen - risen.mean(1, keepdims=True)
    squares = (centred**2).sum(1)
    gains = curves @ centred.T / squares
    bases = curves.mean(1, keepdims=True) - gains * risen.mean(1)
    low, high = possible[0] - ROOM, possible[1] + ROOM
    is_possible = (bases + gains >= low) & (bases + gains <= high)
    explained = np.where(is_possible | ~is_possible.any(1, keepdims=True), gains**2 * squares, -1.0)
    best = explained.argmax(1)
    rows = np.arange(len(curves))
    return bases[rows, best], gains[rows, best], best
