"""Crossed factors: what each value of a swept knob changes on average over the other knobs, and where that depends on
them. The arms of a crossing are paired by seed and problem, as two arms are in `contrast`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from analysis.frames.frames import grouped
from analysis.scores import labels, student
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, averaged
from analysis.scores.comparison import LUCKY, Compared
from analysis.scores.contrast import Difference, Scores, difference
from analysis.scores.crossed import LEVEL, ROUNDING, Interval
from analysis.scores.family import family
from analysis.scores.selection import default_reference, ordered

Array = NDArray[np.float64]
Levels = tuple[str, ...]  # a value of each factor


@dataclass(frozen=True)
class Crossing:
    """An arm for every combination of the values of two or more knobs. values: by knob, the reference's first. fixed:
    the further knobs of a crossing of some arms only, each with one value."""

    values: Mapping[str, Levels]
    arms: Mapping[Levels, Arm]
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def title(self) -> str:
        """`loss × lr, clip_high = 0.28`."""
        return ", ".join(filter(None, (" × ".join(self.values), labels.text(self.fixed))))

    def effects(self) -> list[dict[str, str]]:
        """By knob the values that an effect is of: one knob for its effect on average over all others, then all pairs,
        for the difference that the value of one makes to the effect of the other (y₁₁ − y₁₀ − y₀₁ + y₀₀)."""
        single = [{knob: value} for knob, values in self.values.items() for value in values[1:]]
        return [*single, *(a | b for a, b in combinations(single, 2) if {*a} != {*b})]

    def named(self) -> tuple[list[str], str]:
        """(the names of `effects`, the reference's values)"""
        names = [" × ".join(labels.pair(*pair) for pair in effect.items()) for effect in self.effects()]
        return names, labels.text({**{knob: values[0] for knob, values in self.values.items()}, **self.fixed})

    def weights(self, effect: Mapping[str, str]) -> dict[Levels, float]:
        """By arm, its weight in the effect; they add up to 0."""
        by_knob = [
            [float(v == effect[knob]) - float(v == values[0]) if knob in effect else 1 / len(values) for v in values]
            for knob, values in self.values.items()
        ]
        return dict(zip(product(*self.values.values()), map(math.prod, product(*by_knob)), strict=True))


def crossings(arms: Iterable[Arm], swept: Mapping[str, Sequence[str]], baseline: str) -> list[Crossing]:
    """The crossing of all arms of a setting by the knobs that each of them has, or else those of the arms with the same
    knobs. Controls, arms of other studies and knobs that were tuned for each arm belong to none."""
    trained = ordered([arm for arm in arms if not arm.control and not arm.from_other_study], swept)
    references = list(default_reference(trained, baseline).values())
    of_knobs = grouped(trained, lambda arm: frozenset(arm.knobs) - arm.tuned)
    if whole := _crossing(trained, frozenset[str]().union(*of_knobs).intersection(*of_knobs), references):
        return [replace(whole, fixed={})]
    parts = [_crossing(alike, keys, references) for keys, alike in of_knobs.items()]
    return [crossing for crossing in parts if crossing is not None]


def _crossing(arms: Sequence[Arm], keys: frozenset[str], references: Sequence[Arm]) -> Crossing | None:
    """None unless two of the knobs have several values, and every combination of these has one arm."""
    if not arms:
        return None
    first = next((arm for arm in arms if arm in references), arms[0])
    values = {key: tuple(dict.fromkeys([first.knobs[key], *(arm.knobs[key] for arm in arms)])) for key in sorted(keys)}
    fixed = {key: first.knobs[key] for key, of_key in values.items() if len(of_key) == 1}
    values = {key: values[key] for key in first.knobs if len(values.get(key, ())) > 1}
    by_levels = {tuple(arm.knobs[key] for key in values): arm for arm in arms}
    is_whole = len(arms) == len(by_levels) == math.prod(map(len, values.values()))
    return Crossing(values, by_levels, fixed) if is_whole and len(values) > 1 else None


def compared_effects(crossing: Crossing, cells: Mapping[Levels, Cell], level: float = LEVEL) -> list[Compared]:
    """Those of `Crossing.effects`, one family; [] if an arm has no scores, or two have none in common.

    All contrasts are scaled to the variance of a difference of two arms, so that the spread between seeds is pooled
    over the whole table seeds × arms; what is reported is scaled back.
    """
    scores = {levels: cell.scores for levels, cell in cells.items() if cell.scores is not None}
    effects = [crossing.weights(effect) for effect in crossing.effects()]
    if len(scores) < len(crossing.arms):
        return []
    first, *others = scores.values()
    of_arms = [d for other in others if (d := difference(other, first)) is not None]
    known = [d for weights in effects if (d := _contrast(scores, weights)) is not None]
    if len(known) < len(effects) or len(of_arms) < len(others):
        return []
    scales = [math.sqrt(2 / sum(w * w for w in weights.values())) for weights in effects]
    judged = family([d.times(scale) for d, scale in zip(known, scales, strict=True)], level, spread=of_arms)
    least, most = next(iter(cells.values())).possible
    compared: list[Compared] = []
    for weights, d, scale, of_effect in zip(effects, known, scales, judged.judged, strict=True):
        lucky = any(weight * d.effect > 0 and cells[levels].diverged for levels, weight in weights.items())
        room, unfair = _size(weights) * (most - least), LUCKY if lucky else ""
        shown = replace(d, improvement=math.nan), of_effect.times(1 / scale)
        compared.append(Compared(*shown, len(effects), judged.alpha, 0, unfair, room))
    return compared


def _size(weights: Mapping[Levels, float]) -> float:
    return sum(w for w in weights.values() if w > 0)


def _contrast(scores: Mapping[Levels, Scores], weights: Mapping[Levels, float]) -> Difference | None:
    """The contrast, as the difference of two means over arms times the sum of its positive weights."""
    size = _size(weights)
    plus, minus = (
        averaged([scores[key] for key in levels], [abs(weights[key]) / size for key in levels])
        for levels in ([key for key, weight in weights.items() if sign * weight > 0] for sign in (1, -1))
    )
    d = None if plus is None or minus is None else difference(plus, minus)
    return d and d.times(size)


@dataclass(frozen=True)
class Share:
    """The share of the variance between runs of one knob, or of the interaction of two, beside what seeds leave
    (partial ω²), with the interval of Steiger (2004). f: of the F test, whose error is seeds × arms."""

    knobs: tuple[str, ...]
    f: float
    df: tuple[int, int]
    share: float
    interval: Interval


def shares(crossing: Crossing, cells: Mapping[Levels, Cell], level: float = LEVEL) -> list[Share]:
    """Analysis of variance of runs with seeds as blocks; [] with fewer than two seeds common to all arms, or where
    these differ by the same in all."""
    by_seed = {levels: cell.scores.by_seed() for levels, cell in cells.items() if cell.scores is not None}
    seeds = sorted(set[int].intersection(*(set(s.seeds) for s in by_seed.values()))) if by_seed else []
    if len(by_seed) < len(crossing.arms) or len(seeds) < 2:
        return []
    sizes = [len(values) for values in crossing.values.values()]
    runs = np.array([by_seed[levels].of_seeds(seeds).values[:, 0] for levels in product(*crossing.values.values())])
    residual = runs - runs.mean(1, keepdims=True) - runs.mean(0) + runs.mean()
    df_error = (len(runs) - 1) * (len(seeds) - 1)
    error = float((residual**2).sum()) / df_error
    if error < ROUNDING:
        return []
    means, found = runs.mean(1).reshape(sizes), list[Share]()
    places = range(len(sizes))
    for chosen in [(i,) for i in places] + list(combinations(places, 2)):
        others = tuple(i for i in places if i not in chosen)
        effect = means.mean(others, keepdims=True)
        for axis in chosen:
            effect = effect - effect.mean(axis, keepdims=True)
        df = math.prod(sizes[i] - 1 for i in chosen)
        squares = float((effect**2).mean()) * runs.size
        f = squares / df / error
        omega = max(df * (f - 1) / (df * (f - 1) + runs.size), 0.0)
        ends = [student.noncentral_f(f, df, df_error, (1 + side * level) / 2) for side in (1, -1)]
        low, high = (end / (end + runs.size) for end in ends)
        knobs = tuple(list(crossing.values)[i] for i in chosen)
        found.append(Share(knobs, f, (df, df_error), omega, Interval(low, high)))
    return found
