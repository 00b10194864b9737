"""Whether one arm is above another or the same, and how many more seeds would decide it. Arrays in, arrays out.

Arms of an ablation answer the same test problems, with the same sampling noise, after training on the same problems in
the same order, seed by seed: what they share drops out of d[s, p] = score(arm) − score(reference), whose mean, variance
and degrees of freedom are those of `crossed`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.scores import student
from analysis.scores.crossed import LEVEL, Crossed, by_benchmark, crossed, threshold, weighted

Array = NDArray[np.float64]

POWER = 0.8  # chance with which a difference is to be decided
MOST = 1000  # the largest factor of seeds, problems or samples that is advised


@dataclass(frozen=True)
class Scores:
    """values [S, P] of one arm: a row per seed, a column per problem (NaN: not judged) or one for a number per run.

    benchmark [P]: the benchmark of each problem; None for a number per run. noise [S, P]: the variance of each value
    that is due to the finite samples of a problem; None if it is not known.
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
        """The scores on the problems at these indices, in this order."""
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
        """The scores on the problems for which every seed has a value, of the seeds with values in every benchmark."""
        rows, columns = _whole(np.isfinite(self.values), self.benchmark)
        return self.of_seeds([self.seeds[i] for i in rows]).of_problems(columns)

    @classmethod
    def of_runs(cls, seeds: Iterable[int], values: ArrayLike) -> Scores:
        """Of one number per run."""
        return cls(tuple(seeds), ("",), np.asarray(values, float)[:, None])

    def by_seed(self) -> Scores:
        """One number per run: the mean over the complete problems, benchmarks with equal weights."""
        complete = self.complete()
        return Scores.of_runs(complete.seeds, weighted(complete.values, complete.benchmark))

    def summary(self, *, signed: bool = False) -> Crossed:
        """Mean and variance over the complete problems. signed: see `crossed`."""
        complete = self.complete()
        return crossed(complete.values, complete.benchmark, signed=signed)


def aligned(parts: Sequence[Scores]) -> list[Scores]:
    """The scores on the problems that all of them have, in the order of the first; [] without any."""
    if all(other.problems == parts[0].problems for other in parts):
        return list(parts) if parts[0].problems else []
    shared = set(parts[0].problems).intersection(*(other.problems for other in parts))
    places = ({problem: i for i, problem in enumerate(part.problems)} for part in parts)
    order = [problem for problem in parts[0].problems if problem in shared]
    columns = (np.array([place[problem] for problem in order], dtype=np.int64) for place in places)
    return [part.of_problems(chosen) for part, chosen in zip(parts, columns, strict=True)] if order else []


def paired(parts: Sequence[Scores]) -> list[Scores]:
    """The scores on the seeds and the problems that all of them have, in the order of the first; [] without any."""
    seeds = [s for s in parts[0].seeds if all(s in other.seeds for other in parts)]
    return aligned([part.of_seeds(seeds) for part in parts]) if seeds else []


def _whole(
    known: NDArray[np.bool_], benchmark: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(seeds with a value in every benchmark, problems for which each of these has one). known: [S, P]. Without
    benchmarks all seeds count.

    No problems, and all seeds, if some benchmark would have none: a mean over fewer benchmarks is another quantity.
    """
    everyone = np.arange(len(known))
    if benchmark is None:
        return everyone, np.flatnonzero(known.all(0))
    parts = [np.flatnonzero(benchmark == number) for number in np.unique(benchmark)]
    rows = np.flatnonzero(np.all([known[:, part].any(1) for part in parts], axis=0))
    complete: NDArray[np.bool_] = np.all(known[rows], axis=0)
    if not len(rows) or not all(complete[part].any() for part in parts):
        return everyone, np.array([], np.int64)
    return rows, np.flatnonzero(complete)


def _benchmarks(scores: Scores) -> set[int]:
    return set() if scores.benchmark is None else {*scores.benchmark.tolist()}


@dataclass(frozen=True)
class LeftOut:
    """What cannot be paired: seeds that one side lacks, or that lack all of a benchmark; number of problems that a
    common seed of either side lacks.
    """

    arm_seeds: tuple[int, ...] = ()
    reference_seeds: tuple[int, ...] = ()
    problems: int = 0


@dataclass(frozen=True)
class Difference:
    """Arm − reference over common seeds and problems: values [S, P], their summary, and what was left out.

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
    def scores(self) -> Scores:
        """The differences, as the scores of which further means are made."""
        return Scores(self.seeds, self.problems, self.values, self.benchmark)

    @property
    def per_seed(self) -> Array:
        """[S] the difference of each pair of runs, benchmarks with equal weights."""
        return weighted(self.values, self.benchmark)

    def times(self, factor: float) -> Difference:
        """The difference times a factor above 0."""
        sampling, summary = factor**2 * self.sampling, self.summary.times(factor)
        return replace(self, values=factor * self.values, summary=summary, sampling=sampling)


def difference(arm: Scores, reference: Scores) -> Difference | None:
    """The paired difference over common seeds and problems; None if there are none.

    A problem counts if every common seed of both has a value for it. A seed that lacks all of a benchmark on either
    side does not count, and there is no difference where a benchmark would be left without problems. If only one side
    has its scores by problem (the samples of the other are lost), numbers per run are compared.
    """
    if (arm.benchmark is None) != (reference.benchmark is None):
        arm, reference = arm.by_seed(), reference.by_seed()
    both = paired([arm, reference])
    if not both:
        return None
    a, b = both
    if _benchmarks(arm) | _benchmarks(reference) != _benchmarks(a):
        return None
    rows, complete = _whole(np.isfinite(a.values) & np.isfinite(b.values), a.benchmark)
    if not len(complete):
        return None
    seeds = tuple(a.seeds[i] for i in rows)
    a, b = a.of_seeds(seeds).of_problems(complete), b.of_seeds(seeds).of_problems(complete)
    values = a.values - b.values
    return Difference(
        seeds=seeds,
        problems=a.problems,
        values=values,
        benchmark=a.benchmark,
        summary=crossed(values, a.benchmark, signed=True),
        sampling=_sampling(a) + _sampling(b),
        improvement=improvement(weighted(a.values, a.benchmark), weighted(b.values, b.benchmark)),
        left_out=LeftOut(
            tuple(s for s in arm.seeds if s not in seeds),
            tuple(s for s in reference.seeds if s not in seeds),
            len({*arm.problems, *reference.problems}) - len(complete),
        ),
    )


def _sampling(scores: Scores) -> float:
    """The variance of the mean of complete scores that is due to finite samples; NaN if it is not known."""
    if scores.noise is None:
        return math.nan
    parts = by_benchmark(scores.noise, scores.benchmark)
    return sum(float(part.mean()) / part.shape[1] for part in parts) / len(parts) ** 2 / len(scores.seeds)


def improvement(arm: Array, reference: Array) -> float:
    """The share of pairs of runs in which the arm's score is higher, ties count half; NaN for fewer than two runs.

    arm [S], reference [S']: scores of runs.
    """
    if min(len(arm), len(reference)) < 2:
        return math.nan
    gap = arm[:, None] - reference[None, :]
    return float((gap > 0).mean() + (gap == 0).mean() / 2)


# --- equivalence ---


def equivalence(summary: Crossed, margin: float) -> float:
    """p of two one-sided t tests (TOST): small if the true mean lies within ± margin. Raises ValueError for a margin
    of 0 or less."""
    if margin <= 0:
        raise ValueError(f"equivalence needs a margin above 0, got {margin}")
    if summary.alike or not summary.repeats:
        return 1.0
    if summary.bounded:
        return threshold(lambda alpha: equivalent_within(summary, 1 - alpha) <= margin, 1.0)
    p_values = [student.above((margin + sign * summary.mean) / summary.error, summary.df) for sign in (1, -1)]
    return float(np.max(p_values))


def equivalent_within(summary: Crossed, level: float = LEVEL) -> float:
    """The smallest margin at which TOST at 1 − level finds equivalence: so none need be chosen beforehand."""
    interval = summary.interval(2 * level - 1)
    return max(abs(interval.low), abs(interval.high))


# --- power: the smallest difference that would be decided, and the numbers that would decide a given one ---


def detectable(summary: Crossed, *, alpha: float = 1 - LEVEL) -> float:
    """The smallest true mean that a two-sided test at alpha finds to differ from 0 with POWER; NaN without a spread."""
    if not summary.repeats or summary.alike:
        return math.nan
    df, error = float(summary.df), float(summary.error)
    return student.noncentrality(POWER, summary.interval(1 - alpha).half / error, df) * error


@dataclass(frozen=True)
class Needed:
    """The total numbers that would decide a difference of the observed size, each with the other two as they are; None:
    no number tried would.

    seeds is None also with one seed: it does not show the luck of training.
    """

    seeds: int | None
    problems: int | None
    samples: int | None


def needed(
    summary: Crossed, sampling: float, samples: int = 0, *, alpha: float = 1 - LEVEL, effect: float | None = None
) -> Needed:
    """The numbers that would decide, by the components of variance of a difference, up to MOST times today's numbers.

    sampling: the part of the variance of the mean that finite samples cause (NaN: not known); samples: per problem (0:
    not known); effect: the difference to be decided, by default the observed one.
    """
    S, P = summary.num_seeds, summary.num_problems
    effect = abs(float(summary.mean)) if effect is None else effect
    if not summary.repeats or summary.alike or effect <= 0:
        return Needed(None, None, None)

    def first(count: int, grow: Callable[[float], Crossed]) -> int | None:
        return first_enough(lambda n: detectable(grow(n / count), alpha=alpha) <= effect, count, MOST * count)

    grow = partial(grown, summary, sampling)
    return Needed(
        seeds=first(S, lambda times: grow(seeds=times)) if S > 1 else None,
        problems=first(P, lambda times: grow(problems=times)) if P > 1 else None,
        samples=first(samples, lambda times: grow(samples=times)) if sampling > 0 and samples else None,
    )


def first_enough(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number in [low, high] that is enough; None if `high` is not. `enough` must be monotone."""
    return low + bisect_left(range(low, high), True, key=enough) if enough(high) else None


def grown(
    summary: Crossed, sampling: float, *, seeds: float = 1.0, problems: float = 1.0, samples: float = 1.0
) -> Crossed:
    """The summary to expect with these factors of seeds, problems and samples, from today's components of variance
    (none below 0). sampling: as in `needed`."""
    with_noise = summary.cell if summary.num_seeds > 1 else summary.problem  # the component that contains sampling
    noise = 0.0 if math.isnan(sampling) else min(sampling, float(with_noise))
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
