"""The samplers, which propose the next point: the options of `hydra/sweeper/sampler=`.

A sampler is constructed anew for every parameter, and its noise is a function of (seed, trial, axis): a search that was
killed at any point continues with the proposals that it would have made. Its knowledge is in the study.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna import Study, samplers
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from sweeps.search.space import SearchAxis


@dataclass(frozen=True)
class SampledParameter:
    """The parameter for which a sampler is constructed."""

    axes: Sequence[SearchAxis]
    objectives: int  # number of metrics
    trial: int  # number of the trial
    axis: int  # position of the parameter; values that are drawn for all axes at once are drawn at the first

    def noise(self, seed: int) -> int:
        return int(np.random.SeedSequence((seed, self.trial, self.axis)).generate_state(1)[0])


def tpe(asked: SampledParameter, *, seed: int, n_startup_trials: int, n_ei_candidates: int) -> samplers.BaseSampler:
    """Tree-structured Parzen estimator, for one objective or several (arXiv:2304.11127)."""
    return samplers.TPESampler(
        n_startup_trials=n_startup_trials, n_ei_candidates=n_ei_candidates, seed=asked.noise(seed)
    )


def random(asked: SampledParameter, *, seed: int) -> samplers.BaseSampler:
    """Independent draws, the baseline of every search."""
    return samplers.RandomSampler(asked.noise(seed))


def grid(asked: SampledParameter, *, seed: int) -> samplers.BaseSampler:
    """Each point once, in an order drawn from the seed. Raises ValueError if an axis has infinitely many values."""
    # All trials have the same seed, because Optuna numbers the points in the order that it draws.
    return _Grid({axis.key: axis.points() for axis in asked.axes}, seed=seed)


class _Grid(samplers.GridSampler):
    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Does nothing: Optuna's method stops `Study.optimize`, which is not used here."""


def size(axes: Sequence[SearchAxis]) -> int:
    """The number of points of a grid."""
    return math.prod(len(axis.points()) for axis in axes)


def cmaes(asked: SampledParameter, *, seed: int, n_startup_trials: int, popsize: int | None) -> samplers.BaseSampler:
    """CMA-ES on the numeric axes (arXiv:1604.00772); options of other axes are drawn at random."""
    if asked.objectives > 1:
        raise ValueError(
            f"sampler=cmaes has one objective, not {asked.objectives}: pass hydra/sweeper/sampler=nsgaii or tpe."
        )
    if all(isinstance(axis.distribution, CategoricalDistribution) for axis in asked.axes):
        keys = ", ".join(axis.key for axis in asked.axes)
        raise ValueError(
            f"sampler=cmaes needs a numeric axis, but {keys} is a list of options: write numbers as "
            "range(a,b,step) or interval(a,b), or pass hydra/sweeper/sampler=tpe."
        )
    return samplers.CmaEsSampler(
        n_startup_trials=n_startup_trials,
        popsize=popsize,
        seed=asked.noise(seed),
        independent_sampler=samplers.RandomSampler(asked.noise(seed)),
        warn_independent_sampling=False,
    )


def nsgaii(
    asked: SampledParameter, *, seed: int, population_size: int, crossover_prob: float, mutation_prob: float | None
) -> samplers.BaseSampler:
    """Genetic search for a Pareto front (NSGA-II, doi:10.1109/4235.996017)."""
    return samplers.NSGAIISampler(
        population_size=population_size,
        crossover_prob=crossover_prob,
        mutation_prob=mutation_prob,
        seed=asked.noise(seed),
    )
