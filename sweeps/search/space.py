"""Translates Hydra's sweep syntax into Optuna's search space, and a trial's parameters into overrides.

| typed                          | searched                                                          |
|--------------------------------|-------------------------------------------------------------------|
| `loss=lad,grpo`, `choice(...)` | options without an order                                          |
| `range(1,9,2)`                 | the numbers of Hydra's range: 1, 3, 5, 7; floats too              |
| `interval(0.5,4)`              | all numbers between; `int(interval(1,8))`: the integers 1 to 8    |
| `tag(log,interval(1e-5,1e-3))` | the same, evenly in the logarithm; also `tag(log,range(1,100))`   |
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rlvr.config.overrides import alternatives, key_of
from rlvr.ledger.identity import GRID_KEYS
from sweeps import grid


@dataclass(frozen=True)
class SearchAxis:
    """One swept key. values: those of a float range, as Hydra computes them."""

    key: str
    typed: str
    distribution: BaseDistribution
    values: tuple[float, ...] = ()

    def suggest(self, trial: Trial) -> str:
        """The override for a trial. A value that was suggested to the trial before stays."""
        dist = self.distribution
        if isinstance(dist, CategoricalDistribution):
            return f"{self.key}={trial.suggest_categorical(self.key, dist.choices)}"
        if isinstance(dist, IntDistribution):
            return f"{self.key}={trial.suggest_int(self.key, dist.low, dist.high, step=dist.step, log=dist.log)}"
        assert isinstance(dist, FloatDistribution)
        number = trial.suggest_float(self.key, dist.low, dist.high, step=dist.step, log=dist.log)
        # low + k * step is not always the float of Hydra's range (0.1 + 2 * 0.1 > 0.3): take the nearest of the range.
        return f"{self.key}={min(self.values, key=lambda v: abs(v - number), default=number)}"

    def points(self) -> list[Any]:
        """All values. Raises ValueError for an interval of real numbers."""
        if isinstance(self.distribution, CategoricalDistribution):
            return list(self.distribution.choices)
        if isinstance(self.distribution, IntDistribution):
            return list(range(self.distribution.low, self.distribution.high + 1, self.distribution.step))
        if not self.values:
            raise ValueError(
                f"sampler=grid cannot visit every point of {self.key}={self.typed}: write range(a,b,step) or a list, "
                "or pass hydra/sweeper/sampler=tpe."
            )
        return list(self.values)


@dataclass(frozen=True)
class Space:
    """A search space: its axes, the overrides that all trials share, and the rules of `when`."""

    axes: Sequence[SearchAxis]
    fixed: Mapping[str, str]  # key -> the override that all trials share
    whens: Sequence[grid.Rule] = ()
    usual: grid.Usual = lambda key, point: None

    def point(self, suggest: Callable[[int], str]) -> list[str]:
        """The overrides of a trial. suggest: returns the override of the axis at a position; called only for axes that
        this trial has.
        """
        conditional = {key for rule in self.whens for key in rule.only}
        keys = [key_of(axis.key) for axis in self.axes]
        order = sorted(range(len(keys)), key=lambda k: keys[k] in conditional)
        rules = [[rule for rule in self.whens if key in rule.only] for key in keys]
        point = dict(self.fixed)
        for k in grid.in_order(order, lambda k: {keys[k]}, lambda k: {key for rule in rules[k] for key in rule.wanted}):
            if all(rule.holds(point, self.usual) for rule in rules[k]):
                point[keys[k]] = suggest(k)
        return list(functools.reduce(lambda now, rule: rule.set(now, self.usual), self.whens, point).values())


def search_space(
    overrides: Sequence[Override], whens: Sequence[str] = (), usual: grid.Usual = lambda key, point: None
) -> Space:
    """The search space of these overrides; of several for a key the last counts.

    whens: lines such as `eta if loss=lad` (sweeps/grid.py). Raises ValueError, with the key, for an axis that cannot be
    searched.
    """
    axes: dict[str, SearchAxis] = {}
    fixed: dict[str, str] = {}
    for override in overrides:
        key = key_of(override.get_key_element())
        if key in GRID_KEYS:
            continue
        axes.pop(key, None)
        fixed.pop(key, None)
        is_range = override.is_sweep_override() and not override.is_choice_sweep()
        if not is_range and len(values := alternatives([override])[key]) == 1:
            fixed[key] = values[0]
        else:
            axes[key] = _axis(override.get_key_element(), override)
    if not axes:
        raise ValueError(
            "nothing to search: no key has several values. Pass for example eta=interval(0.5,4) or loss=lad,grpo."
        )
    rules = [grid.when(line) for line in whens]
    grid.check_keys(rules, [{**fixed, **dict.fromkeys(axes, "")}])
    return Space(list(axes.values()), fixed, rules, usual)


def _axis(key: str, override: Override) -> SearchAxis:
    typed = override.get_value_string()
    sweep = override.value()
    tags: set[str] = set(getattr(sweep, "tags", ()))
    log = "log" in tags
    if tags - {"log"}:
        raise ValueError(f"{key}={typed}: the tag {', '.join(sorted(tags - {'log'}))} is unknown. Known: log.")
    if isinstance(sweep, IntervalSweep):
        return SearchAxis(key, typed, _interval(f"{key}={typed}", sweep, log=log))
    if isinstance(sweep, RangeSweep):
        return _range(key, typed, sweep, log=log)
    if log:
        raise ValueError(f"{key}={typed}: a list of options has no logarithm. Write tag(log,interval(a,b)).")
    return SearchAxis(key, typed, CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator()))))


def _interval(typed: str, sweep: IntervalSweep, *, log: bool) -> BaseDistribution:
    low, high = sweep.start, sweep.end
    assert low is not None
    assert high is not None
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"{typed} has no end: an interval is searched between two numbers.")
    if not low < high:
        raise ValueError(f"{typed} is empty: its first number must be smaller than its second.")
    _check_log(typed, low, log=log)
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _range(key: str, typed: str, sweep: RangeSweep, *, log: bool) -> SearchAxis:
    numbers = sorted(sweep.range())
    if len(numbers) < 2:
        raise ValueError(f"{key}={typed} has {len(numbers)} values. Hydra's range stops before its second number.")
    _check_log(f"{key}={typed}", numbers[0], log=log)
    step = abs(sweep.step)
    if all(isinstance(n, int) for n in numbers):
        if log and step != 1:
            raise ValueError(f"{key}={typed}: a logarithmic range has step 1. Write tag(log,range(a,b)).")
        return SearchAxis(key, typed, IntDistribution(int(numbers[0]), int(numbers[-1]), log=log, step=int(step)))
    if log:
        raise ValueError(f"{key}={typed}: a logarithmic range is one of integers. Write tag(log,interval(a,b)).")
    return SearchAxis(key, typed, FloatDistribution(numbers[0], numbers[-1], step=step), tuple(map(float, numbers)))


def _check_log(typed: str, low: float, *, log: bool) -> None:
    if log and low <= 0:
        raise ValueError(f"{typed}: a logarithm needs numbers greater than 0.")
