"""Student's t: the few functions that intervals need, typed. The only file here that imports scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

Array = NDArray[np.float64]
_scipy: Any = special  # it has no types


def quantile(p: Array | float, df: Array | float) -> Array:
    """The t with P(T ≤ t) = p at df degrees of freedom (not whole numbers alone)."""
    return np.asarray(_scipy.stdtrit(df, p), float)


def two_sided(t: Array | float, df: Array | float) -> Array:
    """P(|T| ≥ |t|)."""
    return np.asarray(2 * _scipy.stdtr(df, -np.abs(t)), float)


def above(t: Array | float, df: Array | float) -> Array:
    """P(T ≥ t)."""
    return np.asarray(_scipy.stdtr(df, -np.asarray(t, float)), float)


def noncentrality(power: float, critical: float, df: float) -> float:
    """The δ at which a noncentral T(df, δ) exceeds `critical` with probability `power`.

    A true mean of δ standard errors is told from zero this often by a two-sided test (whose other tail is negligible).
    """
    return float(_scipy.nctdtrinc(df, 1 - power, critical))


def power(noncentrality: float, critical: float, df: float) -> float:
    """P(T > critical) of a noncentral T(df, noncentrality): how often a mean of so many standard errors is seen."""
    return 1 - float(_scipy.nctdtr(df, noncentrality, critical))
