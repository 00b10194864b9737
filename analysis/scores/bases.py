"""A claim over several base policies, which are draws from all that there might be: its verdict is not conditional on
one of them. They are never averaged as if they were seeds of one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.scores.contrast import Difference, LeftOut, Scores, aligned
from analysis.scores.crossed import ROUNDING, Crossed, crossed, weighted
from analysis.scores.random_effects import Pooled, pooled
from analysis.scores.selection import NotTested


@dataclass(frozen=True)
class OverBases(Difference):
    """A difference whose rows are base policies: values [K, P], the mean over each one's seeds. seeds: 0 … K − 1.

    num_seeds [K]. spread: of the bases' differences; None where the luck of their own seeds is not seen beside it.
    apart: the mean and the components of its variance of which more base policies, or more problems, take some.
    by_seeds: the same as those of which more seeds of each base take some, and no more; None where that is not seen.
    """

    num_seeds: tuple[int, ...]
    spread: Pooled | None
    apart: Crossed
    by_seeds: Crossed | None


def over_bases(of_bases: Sequence[Scores]) -> OverBases:
    """The mean over bases of a difference, on the problems that all have. of_bases: complete differences [S, P].

    The mean and its error between bases are those of a random-effects meta-analysis (τ² by Paule and Mandel, t of K − 1
    degrees of freedom by Hartung and Knapp) of each base's difference and the variance between its seeds. All bases
    answered the same problems: the luck of these is common to them and stands beside it, as in `crossed`.
    Raises NotTested without common problems.
    """
    alike = aligned(of_bases)
    if not alike:
        raise NotTested("the base policies have no problem in common")
    if len({frozenset(np.unique(scores.benchmark)) for scores in of_bases if scores.benchmark is not None}) > 1:
        raise NotTested("the base policies were evaluated on different benchmarks")
    benchmark, num_seeds = alike[0].benchmark, tuple(len(scores.seeds) for scores in alike)
    values = np.stack([scores.values.mean(0) for scores in alike])
    variances = [float(crossed(scores.values, benchmark).seed) for scores in alike]
    is_seen = min(num_seeds) > 1 and max(variances) > ROUNDING
    floor = [max(variance, ROUNDING) if is_seen else ROUNDING for variance in variances]
    spread = pooled(weighted(values, benchmark).tolist(), floor, [max(n - 1, 1) for n in num_seeds])
    own = replace(crossed(values, benchmark, signed=True), mean=np.array(spread.mean), seed=np.array(spread.error**2))
    none = np.zeros(())  # by themselves problems would add degrees of freedom, with which three bases cover 93 %
    summary = replace(own, seed=own.variance, problem=none, cell=none)
    by_seeds = None
    if is_seen:
        luck = np.minimum(sum(variances) / len(alike) ** 2, summary.variance)  # of the seeds of each base
        rest, df = summary.variance - luck, np.array(len(alike) - 1.0)
        by_seeds = replace(summary, seed=luck, problem=rest, num_seeds=min(num_seeds), df_problem=df)
    rows, about = tuple(range(len(alike))), (num_seeds, spread if is_seen else None, own, by_seeds)
    return OverBases(rows, alike[0].problems, values, benchmark, summary, math.nan, math.nan, LeftOut(), *about)
