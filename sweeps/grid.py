"""The points of a sweep: axes crossed or paired, conditions, exclusions, further arms. docs/sweeps.md shows each.

This file maps words to words: a point is its overrides by key, and no config is composed.
"""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hydra.core.override_parser.types import Override

from rlvr.config.overrides import Point, alternatives, combinations, key_of, read, value_of
from rlvr.config.registry import SHORTHANDS
from rlvr.ledger.identity import ADDED_ARMS, EXPECTED, GRID_KEYS, GROWTH, NAMING

# Keys of a sweep, never of single points.
OF_ALL = (*GRID_KEYS, *GROWTH, *ADDED_ARMS, *NAMING, *EXPECTED, "tracker", "hydra")
T = TypeVar("T")
Usual = Callable[[str, Point], object]  # (key, point) -> the value of a key in a point that does not set it


@dataclass(frozen=True)
class Rules:
    """Lines that shape a grid, as written in a study or on the command line."""

    also: Sequence[str] = ()  # further arms: lines of overrides, which may sweep
    zip: Sequence[str] = ()  # "eta,lr": keys that are swept together
    exclude: Sequence[str] = ()  # "loss=grpo eta=2": points with all of these are left out
    when: Sequence[str] = ()  # "eta if loss=lad": only these have the axis; "cluster.gpus=2 if loss=ppo": set for these


def expand(overrides: Sequence[Override], own: Collection[str], rules: Rules, usual: Usual) -> list[list[str]]:
    """Every point of a sweep.

    own: keys that the study itself sweeps. The arms of `also` are repeated over the seeds and over what is swept beside
    them, not over these; without a study, not over any other key that is swept. Raises ValueError for a rule that has
    no effect or cannot be read.
    """
    axes = alternatives(o for o in overrides if key_of(o.get_key_element()) not in (*GRID_KEYS, *GROWTH, *ADDED_ARMS))
    own = (set(own) or {key for key, values in axes.items() if len(values) > 1}) - {"seed"}
    arms = [_point_alternatives(f"also={line!r}", _words(f"also={line!r}", line)) for line in rules.also]
    if any("study" in arm for arm in arms):
        raise ValueError("also adds arms to this sweep, and a study is another one. Launch studies one by one.")
    pairs = _pairs(rules.zip, [axes, *arms])
    grid, further = combinations(axes, pairs), [point for arm in arms for point in combinations(arm, pairs)]
    whens = [when(line) for line in rules.when]
    ordered = in_order(whens, lambda rule: {*rule.only}, lambda rule: {*rule.wanted})
    excluded = [condition("exclude", line, line) for line in rules.exclude]
    check_keys([*whens, *excluded], [*grid, *further])
    points = _distinct(_with_own_axes(point, ordered, usual) for point in grid)
    # The seeds and the axes that the user sweeps beside the study's own repeat the arms of `also` too.
    repeats = _distinct({k: v for k, v in point.items() if k not in own} for point in grid)
    added = _distinct(
        _with_own_axes({k: v for k, v in repeat.items() if k not in arm} | arm, ordered, usual, keep=arm)
        for arm, repeat in itertools.product(further, repeats)
    )
    points += _without_repeats(points, added, usual)
    points = [point for point in points if not [rule for rule in excluded if rule.holds(point, usual)]]
    if not points:
        raise ValueError(f"exclude leaves no point of the sweep. Drop one of: {'; '.join(rules.exclude)}.")
    points = [functools.reduce(lambda now, rule: rule.set(now, usual), whens, point) for point in points]
    for rule in (*whens, *excluded):
        if not rule.matched:
            raise ValueError(f"{rule.line} matches no point of the sweep. Correct it or drop it.")
    return [list(point.values()) for point in points]


def _pairs(lines: Sequence[str], arms: Sequence[Mapping[str, Sequence[str]]]) -> list[list[str]]:
    """The keys of each `zip` line. arms: the values of each key, in the grid and in every line of `also`."""
    swept = sorted({key for arm in arms for key, values in arm.items() if len(values) > 1})
    pairs = [[key_of(key) for key in line.replace(",", " ").split()] for line in lines]
    for line, keys in zip(lines, pairs, strict=True):
        if len(keys) < 2:
            raise ValueError(f"zip={line} names one key. Write keys that go in step on one line: zip=eta,lr.")
        if unknown := [key for key in keys if key not in swept]:
            raise ValueError(f"zip={line}: {unknown[0]} is not swept. Swept: {', '.join(swept) or 'nothing'}.")
        if twice := [key for key in keys if sum(pair.count(key) for pair in pairs) > 1]:
            raise ValueError(f"zip={line}: {twice[0]} is in two lines. Write keys that go in step on one line.")
    return pairs


def in_order(items: Iterable[T], gives: Callable[[T], set[str]], asks: Callable[[T], set[str]]) -> list[T]:
    """The items in an order in which each follows all others that give a key which it asks for, so that a condition is
    evaluated after the rules for the axes that it names. Where the order is free, or circular, that of `items` holds.
    """
    left, ordered = list(items), list[T]()
    while left:
        ready = [item for item in left if not any(gives(other) & asks(item) for other in left if other is not item)]
        ordered.append((ready or left)[0])
        left.remove(ordered[-1])
    return ordered


def _with_own_axes(point: Point, whens: Sequence[Rule], usual: Usual, keep: Collection[str] = ()) -> Point:
    """The point without the axes that belong to other points. keep: keys that a line of `also` sets itself."""
    for rule in whens:
        if rule.only and not rule.holds(point, usual):
            point = {k: v for k, v in point.items() if k not in rule.only or k in keep}
    return point


def _distinct(points: Iterable[Point]) -> list[Point]:
    return list({tuple(point.values()): point for point in points}.values())


def _without_repeats(points: Sequence[Point], added: Sequence[Point], usual: Usual) -> list[Point]:
    """The added points without those that repeat another point and only set a shorthand to its usual value: under a
    recipe that clips at 0.28, an arm with clip_high=0.28 is the arm without it.
    """

    def effective_overrides(point: Point) -> frozenset[str]:
        return frozenset(v for k, v in point.items() if k not in SHORTHANDS or value_of(v) != usual(k, point))

    plain = [point for point in (*points, *added) if effective_overrides(point) == frozenset(point.values())]
    known = set(map(effective_overrides, plain))
    return [point for point in added if point in plain or effective_overrides(point) not in known]


# --- lines


def _words(line: str, text: str) -> list[str]:
    """The words of `text`. ValueError, which quotes the rule's `line`, for a quote that is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        raise ValueError(f"{line}: a quote is not closed. Close it or drop it.") from None


def _alternatives(line: str, words: Sequence[str]) -> dict[str, list[str]]:
    """The overrides of each key. ValueError, which quotes the rule's `line`, for a word that is no override, and for a
    key that is given twice.
    """
    try:
        overrides = [read(word) for word in words]
        keys = [key_of(override.get_key_element()) for override in overrides if not override.is_delete()]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"{twice[0]} is given twice. Keep one of them; alternatives are {twice[0]}=A,B.")
        return alternatives(overrides)
    except ValueError as error:
        raise ValueError(f"{line}: {error}") from None


def _point_alternatives(line: str, words: Sequence[str]) -> dict[str, list[str]]:
    """As `_alternatives`; ValueError also for a key that belongs to the whole sweep."""
    if of_sweep := [word for word in words if key_of(word).split(".")[0] in OF_ALL]:
        raise ValueError(
            f"{line}: {key_of(of_sweep[0])} is set for the whole sweep, not for some points. Type it outside the line."
        )
    return _alternatives(line, words)


# --- rules


@dataclass
class Rule:
    """A line of `exclude` or `when`: the condition on a point, and its effect on the points that fulfil it."""

    line: str  # as written
    wanted: dict[str, list[object]]  # key -> values, one of which a point must have
    only: Sequence[str] = ()  # axes that only points with the condition have
    sets: Mapping[str, str] = field(default_factory=dict[str, str])  # key -> override that such points get
    matched: bool = False  # whether the condition held for any point so far

    def holds(self, point: Point, usual: Usual) -> bool:
        fulfilled = all(
            (value_of(point[key]) if key in point else usual(key, point)) in values
            for key, values in self.wanted.items()
        )
        self.matched |= fulfilled
        return fulfilled

    def set(self, point: Point, usual: Usual) -> Point:
        return {**point, **self.sets} if self.sets and self.holds(point, usual) else point


def condition(kind: str, line: str, text: str) -> Rule:
    """The rule of a line of this kind, without an effect. text: the part of the line that is the condition."""
    written = f"{kind}={line!r}"
    words = _words(written, text)
    if not words or any("=" not in word for word in words):
        raise ValueError(
            f"{written}: a condition is key=value, several separated by spaces, such as loss=grpo eta=1,2."
        )
    wanted = _alternatives(written, words)
    return Rule(written, {key: [value_of(override) for override in values] for key, values in wanted.items()})


def when(line: str) -> Rule:
    effect, _, text = line.rpartition(" if ")
    if not effect.strip():
        raise ValueError(
            f"when={line!r}: write the axis or the setting, `if`, and the condition: "
            "eta if loss=lad, or cluster.gpus=2 if loss=ppo."
        )
    rule = condition("when", line, text)
    words = _words(rule.line, effect)
    rule.only = [key_of(word) for word in words if "=" not in word]
    settings = _point_alternatives(rule.line, [word for word in words if "=" in word])
    if swept := [key for key, values in settings.items() if len(values) > 1]:
        raise ValueError(f"{rule.line} gives {swept[0]} several values: a rule sets one. Sweep it in `also`.")
    rule.sets = {key: values[0] for key, values in settings.items()}
    return rule


def check_keys(rules: Sequence[Rule], points: Sequence[Point]) -> None:
    known = {key for point in points for key in point}
    for rule in rules:
        if unknown := [key for key in (*rule.wanted, *rule.only) if key not in known]:
            raise ValueError(
                f"{rule.line}: no point of the sweep sets {unknown[0]}. Points set {', '.join(sorted(known))}."
            )
