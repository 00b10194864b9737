"""Several differences judged together: the chance of any false verdict in the family is 5 %. Arrays in, arrays out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from analysis.scores import student
from analysis.scores.contrast import Difference, paired
from analysis.scores.crossed import LEVEL, Crossed, Interval, by_benchmark, weighted

Array = NDArray[np.float64]

DRAWS = 20_000  # of the largest |t| of a family: the error at a level of 5 % is ± 0.3 %
BEYOND = 0.99  # levels above it use Bonferroni's correction: too few draws lie that far out
SEED = 20260220  # any constant: the same data gives the same interval


@dataclass(frozen=True)
class Judged:
    """One difference, tested at 5 % by itself (plain, p) and at 5 % for its family (simultaneous, p_family).

    Both use `summary`, whose spread between seeds is the family's, or the difference's own if that is larger: then the
    plain interval has its own degrees of freedom, too. The plain interval is never the wider one.
    """

    plain: Interval
    simultaneous: Interval
    p: float
    p_family: float
    summary: Crossed

    def times(self, factor: float) -> Judged:
        """Of the difference times a factor above 0."""
        plain, simultaneous = self.plain.times(factor), self.simultaneous.times(factor)
        return replace(self, plain=plain, simultaneous=simultaneous, summary=self.summary.times(factor))


@dataclass(frozen=True)
class Family:
    """alpha: the level of each test with which all tests together have 1 − `level` (of `family`)."""

    judged: tuple[Judged, ...]
    alpha: float


def family(
    differences: Sequence[Difference],
    level: float = LEVEL,
    *,
    one_reference: bool = True,
    spread: Sequence[Difference] = (),
) -> Family:
    """Simultaneous intervals of differences to one reference, single-step max-|t|: a difference is decided exactly if
    its interval excludes 0 (Holm's steps would decide more, with intervals that contradict the verdicts).

    S seeds give S − 1 degrees of freedom to a difference's own spread between seeds. In the far tail that a family
    needs, Satterthwaite's approximation then errs (a family of nine has 17 % false positives at S = 2 and 9 % at 3,
    seeds 3 points apart). So the spread is pooled over the arms as in Dunnett's test, with (S − 1)·K degrees of freedom
    for K differences: the largest of a difference's own, the mean of all, and the residual mean square of seeds × arms.
    Arms may lack different seeds: each difference adds its own S − 1, and the table has gaps. In simulations the family
    has 5 % false positives with ten equal arms, and 8 % at S = 3 if the seeds of one arm or of the reference lie six
    times as far apart. With two seeds that last case has 18 %, which two seeds cannot show.

    Correlations: ½ between seeds, due to the common reference (0 without one, which gives wider intervals); between
    problems as measured.

    spread: for contrasts of several arms, scaled to the variance of a difference of two of them, the differences of all
    arms to one of them, over which the spread between seeds is pooled; the contrasts have no common reference.

    Do not mix differences over one seed (which hold for single runs) and over several. A single difference is a family
    of one: it has its own spread, and its simultaneous interval is the plain one.
    """
    alone = [d.summary for d in differences]
    if len(alone) < 2:
        return Family(
            tuple(Judged(s.interval(level), s.interval(level), s.p_value(), s.p_value(), s) for s in alone), 1 - level
        )
    one_reference = one_reference and not spread
    pooled, df_seed = _pooled(spread or differences, one_reference or bool(spread))
    summaries = [
        replace(s, seed=np.maximum(s.seed, pooled / s.num_seeds), df_seed=df_seed) if df_seed else s for s in alone
    ]
    # A difference whose own spread is the largest has only its own degrees of freedom.
    plain = [replace(w, df_seed=s.df_seed) if w.seed == s.seed else w for w, s in zip(summaries, alone, strict=True)]
    df = min((float(s.df) for s in summaries if not s.alike), default=1.0)  # what is alike has no spread to estimate
    in_order = sorted(differences, key=lambda d: d.values.tobytes())  # not a table's, on which the draws would depend
    largest = _largest_t(_correlation(in_order, pooled, one_reference), df)
    if level > BEYOND:
        alpha = (1 - level) / len(alone)  # Bonferroni's, with wider intervals
    else:
        alpha = float(student.two_sided(np.quantile(largest, level), df))
    judged = (_judged(single, s, largest, df, alpha, level) for single, s in zip(plain, summaries, strict=True))
    return Family(tuple(judged), alpha)


def _judged(single: Crossed, summary: Crossed, largest: Array, df: float, alpha: float, level: float) -> Judged:
    """One difference, judged by itself (`single`) and in the family (`summary`).

    largest: draws of the largest |t| at df degrees of freedom, the fewest of the family.
    """
    plain, p = single.interval(level), single.p_value()
    if summary.alike or not summary.repeats:
        return Judged(plain, plain, p, p, single)
    as_extreme = -float(student.quantile(summary.p_value() / 2, df))
    of_family = summary.interval(1 - alpha)
    simultaneous = of_family if of_family.half > plain.half else plain
    return Judged(plain, simultaneous, p, max(float((largest >= as_extreme).mean()), p), single)


def _pooled(differences: Sequence[Difference], one_reference: bool) -> tuple[float, int]:
    """(variance of a difference of two runs due to the luck of training, its degrees of freedom).

    The variance is the larger of 2·MS_res of the table seeds × arms, with the reference as an arm, and the mean of the
    differences' own variances; (NaN, 0) if no difference has two seeds.
    """
    df = sum(len(d.seeds) - 1 for d in differences)
    if not df:
        return math.nan, 0
    own = sum(float(((d.per_seed - d.per_seed.mean()) ** 2).sum()) for d in differences) / df
    return (max(2 * _residual(differences) / df, own) if one_reference else own), df


def _residual(differences: Sequence[Difference]) -> float:
    """Residual sum of squares of the table arms × seeds, by least squares, as not every arm need have every seed.

    Scores are relative to the reference's, which are 0. The degrees of freedom are the number of cells minus arms and
    seeds, plus one: Σ(S_k − 1), since the reference has every seed.
    """
    seeds = sorted({seed for d in differences for seed in d.seeds})
    table = np.full((1 + len(differences), len(seeds)), np.nan)
    table[0] = 0
    for row, d in zip(table[1:], differences, strict=True):
        row[[seeds.index(seed) for seed in d.seeds]] = d.per_seed
    present = np.isfinite(table).astype(float)
    shares = present / present.sum(1, keepdims=True)
    scores = np.nan_to_num(table)
    centred = present * (scores - (shares * scores).sum(1, keepdims=True))
    # The effects of arms are eliminated: these are the normal equations of the seeds alone. As the reference has every
    # seed, they leave only the seeds' mean open, to which 1/S gives 0.
    seed = np.linalg.solve(np.diag(present.sum(0)) - shares.T @ present + 1 / len(seeds), centred.sum(0))
    residual = centred - present * (seed - (shares @ seed)[:, None])
    return float((residual**2).sum())


def _correlation(differences: Sequence[Difference], pooled: float, one_reference: bool) -> Array:
    """[K, K] correlation of the estimates, over the cells that all differences have; without such cells the identity,
    which gives wider intervals. One without a spread is correlated with no other."""
    common = paired([d.scores for d in differences])
    if not common:
        return np.eye(len(differences))
    values, benchmark = np.stack([part.values for part in common]), common[0].benchmark
    K, S, _ = values.shape
    between_seeds = (np.eye(K) + 1) / 2 if one_reference else np.eye(K)
    covariance = np.zeros((K, K)) if math.isnan(pooled) else pooled / S * between_seeds
    parts = by_benchmark(values, benchmark)
    for part in (part for part in parts if part.shape[-1] > 1):
        covariance += np.cov(part.mean(1)) / part.shape[-1] / len(parts) ** 2
    if math.isnan(pooled) and S > 1:
        covariance += np.cov(weighted(values, benchmark)) / S
    spread = np.sqrt(np.diag(covariance))
    scale = np.where(spread > 0, spread, 1)
    return covariance / np.outer(scale, scale) + np.diag((spread == 0).astype(float))


def _largest_t(correlation: Array, df: float) -> Array:
    """[DRAWS] the largest |t| of correlated normals over one common spread of df degrees of freedom."""
    values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
    # The symmetric root does not depend on the choice of eigenvectors. Arms with one reference have equal eigenvalues;
    # their eigenvectors, and with them the draws, would differ between machines.
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    root /= np.sqrt((root**2).sum(1, keepdims=True))
    normal = np.abs(_normals(len(correlation)) @ root.T).max(1)
    return normal / np.sqrt(np.random.default_rng(SEED).chisquare(df, DRAWS) / df)


@lru_cache(maxsize=4)
def _normals(K: int) -> Array:
    return np.random.default_rng([SEED, K]).standard_normal((DRAWS, K))
