"""Student's t: the few functions that intervals need, with types. The only file of `analysis` that imports scipy."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

Array = NDArray[np.float64]
_scipy: Any = special  # scipy has no types


def quantile(p: Array | float, df: Array | float) -> Array:
    """The t with P(T ≤ t) = p at df degrees of freedom, which need not be a whole number."""
    return np.asarray(_scipy.stdtrit(df, p), float)


def critical(level: float, df: Array | float) -> Array:
    """The t with P(|T| ≤ t) = level: the half of an interval, in standard errors."""
    return quantile((1 + level) / 2, df)


def two_sided(t: Array | float, df: Array | float) -> Array:
    """P(|T| ≥ |t|)."""
    return np.asarray(2 * _scipy.stdtr(df, -np.abs(t)), float)


def above(t: Array | float, df: Array | float) -> Array:
    """P(T ≥ t)."""
    return np.asarray(_scipy.stdtr(df, -np.asarray(t, float)), float)


def noncentrality(power: float, critical: float, df: float) -> float:
    """The δ at which a noncentral T(df, δ) exceeds `critical` with probability `power`.

    With this probability a two-sided test, whose other tail is negligible, decides that a true mean of δ standard
    errors is not zero.
    """
    return float(_scipy.nctdtrinc(df, 1 - power, critical))


def chi_squared_above(q: float, df: int) -> float:
    """P(χ² ≥ q)."""
    return float(_scipy.chdtrc(df, q))


def noncentral_f(f: float, df: int, df_error: int, p: float) -> float:
    """The noncentrality at which P(F ≤ f) = p; 0 if P is below p without any."""
    return 0.0 if float(_scipy.fdtr(df, df_error, f)) <= p else float(_scipy.ncfdtrinc(df, df_error, p, f))


def power(noncentrality: float, critical: float, df: float) -> float:
    """P(T > critical) of a noncentral T(df, noncentrality): how often a mean of so many standard errors is detected."""
    below = float(_scipy.nctdtr(df, noncentrality, critical))
    # With many degrees of freedom and a large noncentrality SciPy gives NaN, where T is nearly normal.
    return float(_scipy.ndtr(noncentrality - critical)) if math.isnan(below) else 1 - below
