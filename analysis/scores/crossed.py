"""The mean of scores over crossed seeds and problems, and its uncertainty. Arrays in, arrays out.

Notation: values [..., S, P], S seeds (training runs), P problems that all seeds answered; leading axes are independent
repetitions. Seeds and problems are crossed random effects: the luck of training moves a row, the choice of the test set
a column, and the residual (a seed's luck on one problem, the noise of its n samples) a single cell. A percentile
bootstrap over three seeds has a coverage of 84 % at a nominal 95 % (seeds 3 points apart); this interval has 94 %.

Benchmarks have equal weights: with B of them, a problem of benchmark b weighs 1/(B·P_b), and problems and cells vary
within their benchmark. A benchmark whose values are all equal (all problems solved by all seeds, or none; a single
problem and a single seed) shows no spread, but another choice of its problems might: instead of a variance it adds the
bound `unseen` to the interval of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.scores import student

Array = NDArray[np.float64]

LEVEL = 0.95
LEAST_SEEDS = 3  # fewer show too little of the luck of training for a verdict on arms
ROUNDING = 1e-18  # a variance below it is due to rounding of equal numbers


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def within(self, most: float) -> Interval:
        """The interval cut to [−most, most]; NaN stays."""
        low, high = np.clip([self.low, self.high], -most, most).tolist()
        return Interval(low, high)

    def excludes(self, value: float) -> bool:
        return self.low > value or self.high < value

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Crossed:
    """A mean and the components of its variance: arrays [...].

    seed, problem, cell: MS_s, MS_p and MS_e of the two-way layout without repetition, each divided by S·P. `problem` is
    0 for one number per run; `seed` and `cell` are 0 for one seed: then the mean holds for these runs alone.
    """

    mean: Array
    seed: Array
    problem: Array
    cell: Array
    num_seeds: int
    sizes: tuple[int, ...]  # problems of each benchmark; () if the values are one number per run
    df_seed: float  # degrees of freedom of `seed`: S − 1, more where it was pooled over arms
    df_problem: Array  # of `problem`: P − 1; over several benchmarks by Welch and Satterthwaite
    equal: NDArray[np.bool_]  # [..., B] benchmarks whose values are all equal; B = 1 for numbers per run
    reach: Array  # [..., B] the farthest that a problem's value may lie from the mean of its benchmark

    def times(self, factor: float) -> Crossed:
        """Of the values times a factor above 0."""
        seed, problem, cell = (factor**2 * component for component in (self.seed, self.problem, self.cell))
        mean, reach = factor * self.mean, factor * self.reach
        return replace(self, mean=mean, seed=seed, problem=problem, cell=cell, reach=reach)

    @property
    def num_problems(self) -> int:
        return sum(self.sizes)

    @property
    def repeats(self) -> bool:
        """Whether there are several seeds or problems, so that a spread can be estimated."""
        return self.num_seeds > 1 or self.num_problems > 1

    @property
    def variance(self) -> Array:
        """max(MS_s + MS_p − MS_e, MS_s, MS_p)/(S·P)."""
        return np.maximum(np.maximum(self.seed + self.problem - self.cell, self.seed), self.problem)

    @property
    def error(self) -> Array:
        """Standard error; NaN for a single number."""
        return np.sqrt(self.variance) if self.repeats else np.full(self.mean.shape, np.nan)

    @property
    def df(self) -> Array:
        """Satterthwaite's degrees of freedom, at least those of the seeds or, where they are fewer, of the problems."""
        total = np.maximum(self.seed + self.problem - self.cell, 0.0)
        parts = self.problem**2 / self.df_problem
        if self.num_seeds > 1:
            parts = parts + self.seed**2 / self.df_seed + self.cell**2 / ((self.num_seeds - 1) * self.df_problem)
        df = np.divide(total**2, parts, out=np.ones(parts.shape), where=parts > 0)
        fewest = (
            self.df_seed if self.num_problems < 2 or self.num_seeds < 2 else np.minimum(self.df_seed, self.df_problem)
        )
        return np.maximum(df, np.maximum(fewest, 1.0))

    @property
    def alike(self) -> bool:
        """Whether all values (of a single mean) are equal, so that their spread is no estimate."""
        return self.repeats and bool(self.variance < ROUNDING)

    @property
    def bounded(self) -> bool:
        """Whether part of the uncertainty of a single mean is a bound, since some benchmark shows no spread."""
        return bool(self.sizes) and (self.alike or (len(self.sizes) > 1 and bool(self.equal.any())))

    def bound(self, level: float = LEVEL) -> float:
        """The largest effect on a single mean that unseen problems of benchmarks without a spread may have."""
        if not self.bounded:
            return 0.0
        bounds = self.reach * np.array([unseen(P, level) for P in self.sizes])
        return float(np.mean(bounds if self.alike else bounds * self.equal))

    def interval(self, level: float = LEVEL) -> Interval:
        """The interval of a single mean; (NaN, NaN) if there is no repetition.

        Its half is the root of the sum of squares of the t interval's and of `bound`, which err independently. If all
        values are equal, it is the bound alone, and NaN for numbers per run.
        """
        mean = float(self.mean)
        if self.alike:
            half = self.bound(level) if self.sizes else math.nan
        else:
            half = math.hypot(float(student.critical(level, self.df) * self.error), self.bound(level))
        return Interval(mean - half, mean + half)

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that a single mean is 0: 1 − the level at which its interval reaches 0; 1
        without an interval.
        """
        if not self.repeats or (self.alike and not self.sizes):
            return 1.0
        if self.bounded:
            return threshold(lambda alpha: self.interval(1 - alpha).excludes(0), 1.0)
        return float(student.two_sided(self.mean / self.error, self.df))


def threshold(holds: Callable[[float], bool], high: float, steps: int = 60) -> float:
    """The smallest number in (0, high] for which a condition holds, that holds for all larger ones; `high` if for none.
    By bisection."""
    low = 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def unseen(num_problems: int, level: float = LEVEL) -> float:
    """Upper bound of the share of problems that differ from the P observed ones, which were all alike.

    Beta-Binomial: 0 of P under a uniform prior gives the posterior Beta(1, P + 1), whose `level` quantile is
    1 − (1 − level)^(1/(P+1)): the rule of three, about 3/P. Times the farthest that the value of one such problem may
    lie from theirs, this bounds the effect of unseen problems on a mean.
    """
    return 1 - (1 - level) ** (1 / (num_problems + 1))


def weighted(values: Array, benchmark: NDArray[np.int64] | None) -> Array:
    """[..., P] → [...] mean over problems, benchmarks with equal weights. benchmark [P]: of each problem."""
    return np.mean([part.mean(-1) for part in by_benchmark(values, benchmark)], axis=0)


def by_benchmark(values: Array, benchmark: NDArray[np.int64] | None) -> list[Array]:
    """The columns of each benchmark."""
    if benchmark is None or (benchmark.size and (benchmark == benchmark[0]).all()):
        return [values]
    return [values[..., benchmark == b] for b in np.unique(benchmark)]


def crossed(values: Array, benchmark: NDArray[np.int64] | None = None, *, signed: bool = False) -> Crossed:
    """values [..., S, P] without gaps. benchmark [P]: of each problem; None with P = 1: one number per run.

    signed: values of problems lie in [−1, 1], as differences of shares do; otherwise in [0, 1].
    Raises ValueError for undefined values: leave out problems that some seed lacks.
    """
    if not np.isfinite(values).all():
        raise ValueError("a mean over crossed seeds and problems needs every cell; some value is undefined")
    S, P = values.shape[-2:]
    parts = by_benchmark(values, benchmark)
    zero = np.zeros(values.shape[:-2])
    problem, cell, squares = zero, zero, zero
    for part in parts:
        part_problem, part_cell = (component / len(parts) ** 2 for component in _within(part))
        problem, cell = problem + part_problem, cell + part_cell
        squares = squares + part_problem**2 / max(part.shape[-1] - 1, 1)
    rows = weighted(values, benchmark)
    mean = np.stack([part.mean((-2, -1)) for part in parts], axis=-1)
    return Crossed(
        mean=rows.mean(-1),
        seed=rows.var(-1, ddof=1) / S if S > 1 else zero,
        problem=problem,
        cell=cell,
        num_seeds=S,
        sizes=() if benchmark is None and P == 1 else tuple(part.shape[-1] for part in parts),
        df_seed=S - 1,
        reach=np.maximum(mean + 1 if signed else mean, 1 - mean),
        equal=np.stack([np.ptp(part, axis=(-2, -1)) ** 2 < ROUNDING for part in parts], axis=-1),
        df_problem=np.divide(problem**2, squares, out=np.full(zero.shape, float(max(P - 1, 1))), where=squares > 0),
    )


def _within(values: Array) -> tuple[Array, Array]:
    """(MS_p, MS_e)/(S·P) of the problems of one benchmark [..., S, P]."""
    S, P = values.shape[-2:]
    zero = np.zeros(values.shape[:-2])
    if P == 1:
        return zero, zero
    by_problem = values.mean(-2)
    problem = by_problem.var(-1, ddof=1) / P
    if S == 1:
        return problem, zero
    residual = values - values.mean(-1)[..., None] - (by_problem - by_problem.mean(-1)[..., None])[..., None, :]
    return problem, (residual**2).sum((-1, -2)) / ((S - 1) * (P - 1)) / (S * P)
