"""The points of a sweep: axes crossed or paired, conditions, exclusions, further arms. docs/sweeps.md shows each.

Words in, words out: a point is its overrides by key, nothing is composed here.
"""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hydra.core.override_parser.types import Override

from rlvr.config.overrides import Point, alternatives, cross, key_of, read, value_of
from rlvr.config.registry import SHORTHANDS
from rlvr.ledger.identity import ADDED, EXPECTED, GROWTH, LINES, NAMING

OF_ALL = (*LINES, *GROWTH, *ADDED, *NAMING, *EXPECTED, "tracker", "hydra")  # what a sweep has, and none of its points
T = TypeVar("T")
Usual = Callable[[str], object]  # the value that all points have that do not set this key


@dataclass(frozen=True)
class Rules:
    """Lines that shape a grid, as written in a study or on the command line."""

    also: Sequence[str] = ()  # further arms: lines of overrides, which may sweep
    zip: Sequence[str] = ()  # "eta,lr": swept together
    exclude: Sequence[str] = ()  # "loss=grpo eta=2": points that have all of it are left out
    when: Sequence[str] = ()  # "eta if loss=lad": an axis of these points; "cluster.gpus=2 if loss=ppo": set for these


def expand(overrides: Sequence[Override], own: Collection[str], rules: Rules, usual: Usual) -> list[list[str]]:
    """Every point of a sweep. `own`: keys that the study sweeps itself, which `also` does not repeat; without a study
    what is swept, but for seeds.

    Raises ValueError for a rule that cannot be meant: what came, what is allowed, what to type.
    """
    given = alternatives(o for o in overrides if key_of(o.get_key_element()) not in (*LINES, *GROWTH, *ADDED))
    own = set(own) or {key for key, values in given.items() if len(values) > 1 and key != "seed"}
    arms = [_of_points(f"also={line!r}", _words(f"also={line!r}", line)) for line in rules.also]
    if any("study" in arm for arm in arms):
        raise ValueError("also adds arms to this sweep, and a study is another one. Launch studies one by one.")
    pairs = _pairs(rules.zip, [given, *arms])
    grid, further = cross(given, pairs), [point for arm in arms for point in cross(arm, pairs)]
    whens = [when(line) for line in rules.when]
    ordered = in_order(whens, lambda rule: {*rule.only}, lambda rule: {*rule.wanted})
    excluded = [condition("exclude", line, line) for line in rules.exclude]
    check_keys([*whens, *excluded], [*grid, *further])
    points = _distinct(_with_own_axes(point, ordered, usual) for point in grid)
    # What the user sweeps beside the study's own axes (seeds, say) repeats its further arms too.
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
            raise ValueError(f"{rule.told} matches no point of the sweep. Correct it or drop it.")
    return [list(point.values()) for point in points]


def _pairs(lines: Sequence[str], given: Sequence[Mapping[str, Sequence[str]]]) -> list[list[str]]:
    swept = sorted({key for arm in given for key, values in arm.items() if len(values) > 1})
    pairs = [[key_of(key) for key in line.replace(",", " ").split()] for line in lines]
    for line, keys in zip(lines, pairs, strict=True):
        if len(keys) < 2:
            raise ValueError(f"zip={line} names one key. Write keys that go in step on one line: zip=eta,lr.")
        if unknown := [key for key in keys if key not in swept]:
            raise ValueError(f"zip={line}: {unknown[0]} is not swept. Swept: {', '.join(swept) or 'nothing'}.")
        if twice := [key for key in keys if sum(pair.count(key) for pair in pairs) > 1]:
            raise ValueError(f"zip={line}: {twice[0]} stands in two lines. Write all that go in step on one.")
    return pairs


def in_order(items: Iterable[T], gives: Callable[[T], set[str]], asks: Callable[[T], set[str]]) -> list[T]:
    """Each after all others that give a key that it asks for: a condition is looked at once the axes that it names are
    there, or not. Where that leaves a choice, or goes in a circle, as they came.
    """
    left, ordered = list(items), list[T]()
    while left:
        ready = [item for item in left if not any(gives(other) & asks(item) for other in left if other is not item)]
        ordered.append((ready or left)[0])
        left.remove(ordered[-1])
    return ordered


def _with_own_axes(point: Point, whens: Sequence[Rule], usual: Usual, keep: Collection[str] = ()) -> Point:
    """The point without the axes that are for others; `keep`: what a line of `also` sets itself."""
    for rule in whens:
        if rule.only and not rule.holds(point, usual):
            point = {k: v for k, v in point.items() if k not in rule.only or k in keep}
    return point


def _distinct(points: Iterable[Point]) -> list[Point]:
    return list({tuple(point.values()): point for point in points}.values())


def _without_repeats(points: Sequence[Point], added: Sequence[Point], usual: Usual) -> list[Point]:
    """Those of the added points that are none of the others with a shorthand at the value that holds anyway: under a
    recipe that clips at 0.28 an arm with clip_high=0.28 is the plain one.
    """

    def told(point: Point) -> frozenset[str]:
        return frozenset(v for k, v in point.items() if k not in SHORTHANDS or value_of(v) != usual(k))

    plain = [point for point in (*points, *added) if told(point) == frozenset(point.values())]
    known = set(map(told, plain))
    return [point for point in added if point in plain or told(point) not in known]


# --- lines


def _words(told: str, text: str) -> list[str]:
    """ValueError, with the line that it is about, for quotes that are not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        raise ValueError(f"{told}: a quote is not closed. Close it or drop it.") from None


def _alternatives(told: str, words: Sequence[str]) -> dict[str, list[str]]:
    """The same for words that are no overrides."""
    try:
        return alternatives(map(read, words))
    except ValueError as error:
        raise ValueError(f"{told}: {error}") from None


def _of_points(told: str, words: Sequence[str]) -> dict[str, list[str]]:
    """The same for keys that no point of a sweep has."""
    if whole := [word for word in words if key_of(word).split(".")[0] in OF_ALL]:
        raise ValueError(
            f"{told}: {key_of(whole[0])} is of the whole sweep, not of some points. Type it outside of the line."
        )
    return _alternatives(told, words)


# --- rules


@dataclass
class Rule:
    """`exclude` or `when`: what a point must have, and what then holds of it."""

    told: str  # as written
    wanted: dict[str, list[object]]  # key -> values, any of which will do
    only: Sequence[str] = ()  # axes that other points do not have
    sets: Mapping[str, str] = field(default_factory=dict[str, str])
    matched: bool = False

    def holds(self, point: Point, usual: Usual) -> bool:
        found = all(
            (value_of(point[key]) if key in point else usual(key)) in values for key, values in self.wanted.items()
        )
        self.matched |= found
        return found

    def set(self, point: Point, usual: Usual) -> Point:
        return {**point, **self.sets} if self.sets and self.holds(point, usual) else point


def condition(kind: str, line: str, text: str) -> Rule:
    told = f"{kind}={line!r}"
    words = _words(told, text)
    if not words or any("=" not in word for word in words):
        raise ValueError(f"{told}: a condition is key=value, several separated by spaces, such as loss=grpo eta=1,2.")
    wanted = _alternatives(told, words)
    return Rule(told, {key: [value_of(one) for one in values] for key, values in wanted.items()})


def when(line: str) -> Rule:
    what, _, having = line.rpartition(" if ")
    if not what.strip():
        raise ValueError(
            f"when={line!r}: write the axis or the setting, `if`, and the condition: "
            "eta if loss=lad, or cluster.gpus=2 if loss=ppo."
        )
    rule = condition("when", line, having)
    words = _words(rule.told, what)
    rule.only = [key_of(word) for word in words if "=" not in word]
    settings = _of_points(rule.told, [word for word in words if "=" in word])
    if swept := [key for key, values in settings.items() if len(values) > 1]:
        raise ValueError(f"{rule.told} gives {swept[0]} several values: a rule sets one. Sweep it in `also`.")
    rule.sets = {key: values[0] for key, values in settings.items()}
    return rule


def check_keys(rules: Sequence[Rule], points: Sequence[Point]) -> None:
    known = {key for point in points for key in point}
    for rule in rules:
        if unknown := [key for key in (*rule.wanted, *rule.only) if key not in known]:
            raise ValueError(
                f"{rule.told}: no point of the sweep sets {unknown[0]}. Points set {', '.join(sorted(known))}."
            )
