"""Which arms a user means: `loss=grpo`, `divergence=tv,hd eta = 0.5`, and what each arm is compared to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from analysis.scores import words
from analysis.scores.arm import CONTROL_KNOBS, Arm

BASE = "base"  # the base policy, as a reference


def select(arms: Iterable[Arm], selector: str) -> list[Arm]:
    """The arms with all of these knobs, typed or by default; several values of one are alternatives. Controls are left
    out, unless the knob is named that makes them.

    Raises ValueError for a selector that is none.
    """
    wanted = {key: value.split(",") for key, value in words.parse(selector).items()}
    found = [arm for arm in arms if all(_has(arm, key, values) for key, values in wanted.items())]
    return [arm for arm in found if not arm.control or CONTROL_KNOBS[arm.control] in wanted]


def _has(arm: Arm, key: str, values: Sequence[str]) -> bool:
    own = value_of(arm, key)
    return own is not None and any(words.equal(own, value) for value in values)


def value_of(arm: Arm, key: str) -> str | None:
    """What holds for a knob of this arm, as text; None where it has none."""
    if key in arm.knobs:
        return arm.knobs[key]
    value = arm.first.knob(key)
    return None if value is None or value == "" else words.whole(value)


def references(arms: Sequence[Arm], selector: str) -> dict[str, Arm]:
    """By group, the arm that each one is compared to. One of several arms that the selector names is chosen: the one
    with nothing else about it, else for each arm that which agrees with it in every other knob. {} where it names none.
    """
    candidates = select(arms, selector)
    named = set(words.parse(selector))
    plain = [arm for arm in candidates if set(arm.knobs) <= named | arm.tuned]
    one = candidates if len(candidates) == 1 else plain if len(plain) == 1 else []
    if one:
        return {arm.group_id: one[0] for arm in arms if arm is not one[0]}
    found: dict[str, Arm] = {}
    for arm in (a for a in arms if a not in candidates):
        alike = [c for c in candidates if _rest(c, arm, named)]
        if len(alike) == 1:
            found[arm.group_id] = alike[0]
    return found


def _rest(candidate: Arm, arm: Arm, named: Iterable[str]) -> bool:
    """Whether both agree in every knob of either, but for those named and those that the candidate cannot have."""
    keys = {*candidate.knobs, *arm.knobs} - set(named) - candidate.tuned
    pairs = [(value_of(candidate, key), value_of(arm, key)) for key in keys]
    return all(a is None or (b is not None and words.equal(a, b)) for a, b in pairs)


def default_reference(arms: Sequence[Arm], baseline: str) -> dict[str, Arm]:
    """The baseline that the study names, else GRPO, else the first arm; {} for one arm alone."""
    for selector in filter(None, (baseline, "loss=grpo")):
        if found := references(arms, selector):
            return found
    first = next((arm for arm in arms if not arm.control), None)
    return {arm.group_id: first for arm in arms if first is not None and arm is not first}


def reference_of(arms: Sequence[Arm], asked: str, baseline: str) -> dict[str, Arm]:
    """By group, the arm that each is compared to: the one asked for, "" for the default. LookupError: no selector."""
    try:
        return references(arms, asked) if asked else default_reference(arms, baseline)
    except ValueError as error:
        raise LookupError(f"--against: {error}") from None


def ordered(arms: Iterable[Arm], swept: Mapping[str, Sequence[str]]) -> list[Arm]:
    """By the values of their knobs: numbers ascending, words as they were typed; an arm without a knob comes first."""
    found = list(arms)
    keys = list(dict.fromkeys([*swept, *(key for arm in found for key in arm.knobs)]))
    listed = {
        key: list(dict.fromkeys([*swept.get(key, ()), *(a.knobs[key] for a in found if key in a.knobs)]))
        for key in keys
    }

    def place(arm: Arm, key: str) -> tuple[float, ...]:
        value = arm.knobs.get(key)
        if value is None:
            return (-1.0,)
        number = words.number(value)
        return (1.0, listed[key].index(value)) if math.isnan(number) else (0.0, number)

    return sorted(found, key=lambda arm: [place(arm, key) for key in keys])
