"""From judged samples to a score per problem: n judged samples, c of them correct. Arrays in, arrays out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rlvr.metrics import pass_at_k

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def avg_values(n: Counts, c: Counts) -> Array:
    """c/n per problem; NaN where no sample was judged."""
    n, c = np.asarray(n), np.asarray(c)
    return np.divide(c, n, out=np.full(n.shape, np.nan), where=n > 0)


def pass_values(n: Counts, c: Counts, k: int) -> Array:
    """Unbiased pass@k per problem (Chen et al. 2021); NaN where fewer than k samples were judged."""
    n, c = np.asarray(n), np.asarray(c)
    enough = n >= k
    value = np.full(n.shape, np.nan)
    value[enough] = pass_at_k(n[enough], c[enough], k)
    return value


def avg_noise(n: Counts, c: Counts) -> Array:
    """Variance of c/n from the draw of the samples, unbiased: c(n − c)/(n²(n − 1)); NaN for fewer than two samples."""
    n, c = np.asarray(n, float), np.asarray(c, float)
    return np.divide(c * (n - c), n**2 * (n - 1), out=np.full(n.shape, np.nan), where=n > 1)


def pass_noise(n: Counts, c: Counts, k: int) -> Array:
    """Variance of the pass@k estimate from the draw of the samples; NaN where fewer than k were judged.

    It is the variance under c' ~ Binomial(n, (c + ½)/(n + 1)), since no unbiased estimate exists unless n ≥ 2k.
    """
    n, c = np.asarray(n), np.asarray(c)
    noise = np.full(n.shape, np.nan)
    for size in np.unique(n[n >= k]):
        noise[n == size] = _pass_noise(int(size), k)[c[n == size]]
    return noise


@lru_cache(maxsize=64)
def _pass_noise(n: int, k: int) -> Array:
    """[n + 1] the variance for each count c of correct samples."""
    drawn = np.arange(n + 1)
    rate = (drawn + 0.5) / (n + 1)
    choose = np.cumsum(np.log(np.maximum(drawn, 1)))  # log of the factorials
    log_pmf = (choose[n] - choose - choose[::-1]) + np.outer(np.log(rate), drawn) + np.outer(np.log1p(-rate), n - drawn)
    pmf = np.exp(log_pmf)
    value = pass_at_k(np.full(n + 1, n), drawn, k)
    return pmf @ value**2 - (pmf @ value) ** 2
