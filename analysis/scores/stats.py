"""From judged samples to a mean and its interval. Arrays in, arrays out: knows nothing of experiments.

Notation: S seeds, P problems, R bootstrap replicates; per problem n judged samples of which c are correct.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlvr.metrics import pass_at_k

Array = NDArray[np.float64]

REPLICATES = 2000
LEVEL = 0.95
SEED = 20260220  # any constant: the same data gives the same interval
CHUNK = 256  # replicates held in memory at once


def avg_values(n: NDArray[np.int64], c: NDArray[np.int64]) -> Array:
    """c/n per problem; NaN where no sample was judged."""
    n, c = np.asarray(n, float), np.asarray(c, float)
    return np.divide(c, n, out=np.full(n.shape, np.nan), where=n > 0)


def pass_values(n: NDArray[np.int64], c: NDArray[np.int64], k: int) -> Array:
    """Unbiased pass@k per problem (Chen et al. 2021); NaN where fewer than k samples were judged."""
    n, c = np.asarray(n), np.asarray(c)
    enough = n >= k
    value = np.full(n.shape, np.nan)
    value[enough] = pass_at_k(n[enough], c[enough], k)
    return value


def mean(values: Array) -> float:
    """Mean over all defined (seed, problem) pairs of values [S, P]; NaN if there is none."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def bootstrap(values: Array, *, key: str = "", replicates: int = REPLICATES) -> Array:
    """[R] resampled means of values [S, P], NaN where undefined: seeds are drawn with replacement, then problems.

    Seeds share their test problems, so one draw of problems serves all seeds (Owen 2007, the pigeonhole bootstrap):
    drawing anew within each seed would treat the luck of the test set as averaged away by seeds. A problem's n samples
    move with it, so the spread covers them too. With S = 1 it covers problems and samples only.

    Draws depend on (key, P) and S alone: cells with the same problems are resampled alike, so replicates may be
    averaged or subtracted across cells.
    """
    S, P = values.shape
    defined = np.isfinite(values)
    filled = np.where(defined, values, 0.0)
    weights, seeds = _problem_draws(key, P, replicates), _seed_draws(S, replicates)
    out = np.empty(replicates)
    for start in range(0, replicates, CHUNK):
        rows = slice(start, start + CHUNK)
        v, w = seeds[rows].astype(float), weights[rows].astype(float)
        total = np.einsum("rp,rp->r", v @ filled, w)
        number = np.einsum("rp,rp->r", v @ defined.astype(float), w)
        out[rows] = np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
    return out


def interval(replicates: Array, level: float = LEVEL) -> tuple[float, float]:
    """Central percentile interval of bootstrap replicates; (NaN, NaN) if none is defined."""
    defined = replicates[np.isfinite(replicates)]
    if not defined.size:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@lru_cache(maxsize=8)
def _problem_draws(key: str, P: int, replicates: int) -> NDArray[np.uint16]:
    """[R, P] how often each problem is drawn."""
    rng = np.random.default_rng([SEED, crc32(key.encode()), P])
    rows = [
        rng.multinomial(P, np.full(P, 1 / P), size=min(CHUNK, replicates - start)).astype(np.uint16)
        for start in range(0, replicates, CHUNK)
    ]
    return np.concatenate(rows)


@lru_cache(maxsize=8)
def _seed_draws(S: int, replicates: int) -> NDArray[np.uint16]:
    """[R, S] how often each seed is drawn."""
    return np.random.default_rng([SEED, S]).multinomial(S, np.full(S, 1 / S), size=replicates).astype(np.uint16)
