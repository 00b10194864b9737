"""When a trial is stopped early: the options of `hydra/sweeper/pruner=`. Steps are training steps."""

from __future__ import annotations

import warnings

from optuna import pruners
from optuna.exceptions import ExperimentalWarning


def none() -> pruners.BasePruner:
    """Every trial runs to its last step."""
    return pruners.NopPruner()


def median(*, n_startup_trials: int, n_warmup_steps: int, n_min_trials: int) -> pruners.BasePruner:
    """Stops a trial whose best value so far is worse than the median of the others at the same step."""
    return pruners.MedianPruner(n_startup_trials, n_warmup_steps, n_min_trials=n_min_trials)


def patient(*, patience: int, min_delta: float) -> pruners.BasePruner:
    """Stops a trial whose newest `patience` + 1 evaluations are worse than an earlier one by more than `min_delta`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return pruners.PatientPruner(None, patience, min_delta)


def successive_halving(
    *, min_resource: int | str, reduction_factor: int, min_early_stopping_rate: int
) -> pruners.BasePruner:
    """At growing numbers of steps only the best 1 / reduction_factor continue (ASHA, arXiv:1810.05934)."""
    return pruners.SuccessiveHalvingPruner(min_resource, reduction_factor, min_early_stopping_rate)
