"""Who proposes the next point: the options of `hydra/sweeper/sampler=`.

A sampler is made anew for every parameter, its noise a function of (seed, trial, axis): a search that was killed
anywhere goes on with what it would have proposed. What it has learnt it reads from the study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna import Study, samplers
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from sweeps.search.space import Axis


@dataclass(frozen=True)
class Asked:
    """What a sampler is made for."""

    axes: Sequence[Axis]
    objectives: int
    trial: int  # number
    axis: int  # position of the parameter; what is drawn for all axes at once is drawn for the first

    def noise(self, seed: int) -> int:
        return int(np.random.SeedSequence((seed, self.trial, self.axis)).generate_state(1)[0])


def tpe(asked: Asked, *, seed: int, n_startup_trials: int, n_ei_candidates: int) -> samplers.BaseSampler:
    """Tree-structured Parzen estimator, for one objective or several (arXiv:2304.11127)."""
    return samplers.TPESampler(
        n_startup_trials=n_startup_trials, n_ei_candidates=n_ei_candidates, seed=asked.noise(seed)
    )


def random(asked: Asked, *, seed: int) -> samplers.BaseSampler:
    """Independent draws, the baseline of every search."""
    return samplers.RandomSampler(asked.noise(seed))


def grid(asked: Asked, *, seed: int) -> samplers.BaseSampler:
    """Each point once, in an order drawn from the seed. Raises ValueError if an axis has no end of points."""
    # One seed for all trials: Optuna numbers the points in the order that it draws.
    return _Grid({axis.key: axis.points() for axis in asked.axes}, seed=seed)


class _Grid(samplers.GridSampler):
    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Nothing: Optuna would stop `Study.optimize` here, which is not what runs."""


def size(axes: Sequence[Axis]) -> int:
    """Points of a grid."""
    return math.prod(len(axis.points()) for axis in axes)


def cmaes(asked: Asked, *, seed: int, n_startup_trials: int, popsize: int | None) -> samplers.BaseSampler:
    """CMA-ES on the numeric axes (arXiv:1604.00772); options beside them are drawn at random."""
    if asked.objectives > 1:
        raise ValueError(
            f"sampler=cmaes has one objective, not {asked.objectives}: pass hydra/sweeper/sampler=nsgaii or tpe."
        )
    if all(isinstance(axis.distribution, CategoricalDistribution) for axis in asked.axes):
        told = ", ".join(axis.key for axis in asked.axes)
        raise ValueError(
            f"sampler=cmaes needs a numeric axis, but {told} is a list of options: write numbers as "
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
    asked: Asked, *, seed: int, population_size: int, crossover_prob: float, mutation_prob: float | None
) -> samplers.BaseSampler:
    """Genetic search for a Pareto front (NSGA-II, doi:10.1109/4235.996017)."""
    return samplers.NSGAIISampler(
        population_size=population_size,
        crossover_prob=crossover_prob,
        mutation_prob=mutation_prob,
        seed=asked.noise(seed),
    )
