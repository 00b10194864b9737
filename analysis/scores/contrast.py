"""Is one arm above another, is it the same, and how many more seeds would tell? Arrays in, arrays out.

Arms of an ablation answer the same test problems, with the same sampling noise, after training on the same problems in
the same order, seed by seed: what they share drops out of d[s, p] = score(arm) − score(reference), whose mean, variance
and degrees of freedom are those of `crossed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.scores import student
from analysis.scores.crossed import LEVEL, Crossed, by_benchmark, crossed, weighted

Array = NDArray[np.float64]

POWER = 0.8
MOST = 1000  # times as many seeds, problems or samples: beyond it "more" is no advice


@dataclass(frozen=True)
class Scores:
    """values [S, P] of one arm: a row per seed, a column per problem (NaN: not judged) or one for a number per run.

    benchmark [P]: whose problem it is; None for a number per run. noise [S, P]: the variance that the finite samples of
    a problem give each value; None where it is not known.
    """

    seeds: tuple[int, ...]
    problems: tuple[Hashable, ...]
    values: Array
    benchmark: NDArray[np.int64] | None = None
    noise: Array | None = None

    def of_seeds(self, seeds: Sequence[int]) -> Scores:
        rows = [self.seeds.index(s) for s in seeds]
        noise = None if self.noise is None else self.noise[rows]
        return replace(self, seeds=tuple(seeds), values=self.values[rows], noise=noise)

    def of_problems(self, columns: NDArray[np.int64]) -> Scores:
        """The problems in these places, in this order."""
        if len(columns) == len(self.problems) and np.array_equal(columns, np.arange(len(columns))):
            return self
        return replace(
            self,
            problems=tuple(self.problems[i] for i in columns),
            values=self.values[:, columns],
            benchmark=None if self.benchmark is None else self.benchmark[columns],
            noise=None if self.noise is None else self.noise[:, columns],
        )

    def complete(self) -> Scores:
        """The problems for which every seed has a value."""
        return self.of_problems(np.flatnonzero(np.isfinite(self.values).all(0)))

    def by_seed(self) -> Scores:
        """One number per run: the mean over its complete problems, benchmarks alike."""
        kept = self.complete()
        return Scores(self.seeds, ("",), weighted(kept.values, kept.benchmark)[:, None])

    def summary(self) -> Crossed:
        """Mean and variance over the complete problems."""
        kept = self.complete()
        return crossed(kept.values, kept.benchmark)


@dataclass(frozen=True)
class LeftOut:
    """What has no partner: seeds that one side lacks, problems that some common seed of either side lacks."""

    arm_seeds: tuple[int, ...] = ()
    reference_seeds: tuple[int, ...] = ()
    problems: int = 0

    def __bool__(self) -> bool:
        return bool(self.arm_seeds or self.reference_seeds or self.problems)


@dataclass(frozen=True)
class Difference:
    """Arm − reference over what both have: values [S, P], their summary, and what was left out.

    sampling: the part of the variance of the mean that the finite number of samples causes; NaN if not known. The two
    arms' noises are taken as independent: where arms share it, it is less.
    improvement: chance that a run of the arm under one seed scores above a run of the reference under another (Mann and
    Whitney's estimate over all pairs of runs, ties count half; rliable, arXiv:2108.13264); NaN with one seed.
    """

    seeds: tuple[int, ...]
    problems: tuple[Hashable, ...]
    values: Array
    benchmark: NDArray[np.int64] | None
    summary: Crossed
    sampling: float
    improvement: float
    left_out: LeftOut

    @property
    def effect(self) -> float:
        return float(self.summary.mean)

    @property
    def per_seed(self) -> Array:
        """[S] the difference of each pair of runs, benchmarks alike."""
        return weighted(self.values, self.benchmark)


def difference(arm: Scores, reference: Scores) -> Difference | None:
    """Pair what both have, seed by seed and problem by problem; None if that is nothing.

    A problem counts if every common seed of both has a value for it.
    """
    seeds = tuple(s for s in arm.seeds if s in set(reference.seeds))
    own, other = _shared(arm.problems, reference.problems)
    if not seeds or not len(own):
        return None
    a, b = arm.of_seeds(seeds).of_problems(own), reference.of_seeds(seeds).of_problems(other)
    both = np.flatnonzero(np.isfinite(a.values).all(0) & np.isfinite(b.values).all(0))
    if not len(both):
        return None
    a, b = a.of_problems(both), b.of_problems(both)
    values = a.values - b.values
    return Difference(
        seeds=seeds,
        problems=a.problems,
        values=values,
        benchmark=a.benchmark,
        summary=crossed(values, a.benchmark),
        sampling=_sampling(a) + _sampling(b),
        improvement=improvement(weighted(a.values, a.benchmark), weighted(b.values, b.benchmark)),
        left_out=LeftOut(
            tuple(s for s in arm.seeds if s not in seeds),
            tuple(s for s in reference.seeds if s not in seeds),
            max(len(arm.problems), len(reference.problems)) - len(both),
        ),
    )


def _shared(arm: tuple[Hashable, ...], reference: tuple[Hashable, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places of the common problems in the arm's, in the reference's)."""
    if arm == reference:
        return np.arange(len(arm)), np.arange(len(arm))
    place = {p: i for i, p in enumerate(reference)}
    own = [i for i, p in enumerate(arm) if p in place]
    return np.array(own, np.int64), np.array([place[arm[i]] for i in own], np.int64)


def _sampling(scores: Scores) -> float:
    """The variance that finite samples give the mean of complete scores; NaN where it is not known."""
    if scores.noise is None:
        return math.nan
    parts = by_benchmark(scores.noise, scores.benchmark)
    return sum(float(part.mean()) / part.shape[1] for part in parts) / len(parts) ** 2 / len(scores.seeds)


def improvement(arm: Array, reference: Array) -> float:
    """[S], [S'] scores of runs → the share of pairs in which the arm's is higher, ties half; NaN for fewer than two."""
    if min(len(arm), len(reference)) < 2:
        return math.nan
    gap = arm[:, None] - reference[None, :]
    return float((gap > 0).mean() + (gap == 0).mean() / 2)


# --- the same? ---


def equivalence(summary: Crossed, margin: float) -> float:
    """p of two one-sided t tests (TOST): small where the true mean lies within ± margin. ValueError for no margin."""
    if margin <= 0:
        raise ValueError(f"equivalence needs a margin above 0, got {margin}")
    if summary.alike or not summary.repeats:
        return 1.0
    sides = [student.above((margin + sign * summary.mean) / summary.error, summary.df) for sign in (1, -1)]
    return float(np.max(sides))


def equivalent_within(summary: Crossed, level: float = LEVEL) -> float:
    """The smallest margin at which TOST at 1 − level says "the same": so none need be named beforehand."""
    interval = summary.interval(2 * level - 1)
    return max(abs(interval.low), abs(interval.high))


# --- how much would be seen, and how many more would decide ---


def detectable(summary: Crossed, *, alpha: float = 1 - LEVEL, power: float = POWER) -> float:
    """The smallest true mean that is told from 0 with this power by a two-sided test at alpha; NaN without a spread."""
    if not summary.repeats or summary.alike:
        return math.nan
    df = float(summary.df)
    critical = float(student.quantile(1 - alpha / 2, df))
    return student.noncentrality(power, critical, df) * float(summary.error)


@dataclass(frozen=True)
class Needed:
    """How many in all, of one kind alone, would decide a difference of the size seen; None: no number tried would.

    seeds are None with one seed too: the luck of training has not been seen.
    """

    seeds: int | None
    problems: int | None
    samples: int | None


def needed(
    summary: Crossed,
    sampling: float,
    samples: int,
    *,
    alpha: float = 1 - LEVEL,
    power: float = POWER,
    effect: float | None = None,
) -> Needed:
    """From the components of variance of a difference, up to MOST times as many as today.

    sampling: the part of the variance of the mean that finite samples cause (NaN: not known); samples: per problem;
    effect: what is to be seen, by default the difference found.
    """
    S, P = summary.num_seeds, summary.num_problems
    effect = abs(float(summary.mean)) if effect is None else effect
    if not summary.repeats or summary.alike or effect <= 0:
        return Needed(None, None, None)

    def enough(grown: Crossed) -> bool:
        return detectable(grown, alpha=alpha, power=power) <= effect

    def first(count: int, grow: Callable[[float], Crossed]) -> int | None:
        return _first(lambda n: enough(grow(n / count)), count, MOST * count)

    noise = 0.0 if math.isnan(sampling) else sampling
    return Needed(
        seeds=first(S, lambda times: grown(summary, noise, seeds=times)) if S > 1 else None,
        problems=first(P, lambda times: grown(summary, noise, problems=times)) if P > 1 else None,
        samples=first(samples, lambda times: grown(summary, noise, samples=times)) if noise > 0 and samples else None,
    )


def _first(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number of [low, high] that is enough, where more than enough is enough."""
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def grown(
    summary: Crossed, sampling: float, *, seeds: float = 1.0, problems: float = 1.0, samples: float = 1.0
) -> Crossed:
    """The summary to expect from so many times as many, with today's components of variance (none below 0)."""
    whole = summary.cell if summary.num_seeds > 1 else summary.problem  # the part that samples are in
    noise = min(sampling, float(whole))
    cell = (float(summary.cell) - noise + noise / samples) / seeds / problems if summary.num_seeds > 1 else 0.0
    seed = max(float(summary.seed - summary.cell), 0.0) / seeds + cell
    problem = max(float(summary.problem - summary.cell), 0.0) / problems + cell
    if summary.num_seeds == 1:
        problem = (float(summary.problem) - noise + noise / samples) / problems
    S = round(summary.num_seeds * seeds)
    return replace(
        summary,
        seed=np.array(seed),
        problem=np.array(problem),
        cell=np.array(cell),
        num_seeds=S,
        sizes=tuple(round(P * problems) for P in summary.sizes),
        df_seed=summary.df_seed * (S - 1) / max(summary.num_seeds - 1, 1),
        df_problem=summary.df_problem * problems,
    )
