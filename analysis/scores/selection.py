"""The arms that a selector names, as in `loss=grpo` or `divergence=tv,hd eta = 0.5`, the reference of each arm, and the
two sides of a claim: which arms are compared to which, of arms that have run or are planned."""

import math
from collections.abc import Iterable, Mapping, Sequence

from analysis.scores import labels
from analysis.scores.arm import CONTROL_KNOBS, Arm
from analysis.scores.claim import Claim

BASE = "base"  # the base policy, as a reference
EVALUATED_BASE = f"policy={BASE}"  # the same among evaluated policies, where it is an arm like any other


def select(arms: Iterable[Arm], selector: str) -> list[Arm]:
    """The arms with all of these knobs, typed or by default; several values of a knob are alternatives. Controls are
    only selected if the selector names the knob that makes them controls.

    Raises ValueError for an ill-formed selector.
    """
    wanted = {key: labels.alternatives(value) for key, value in labels.parse(selector).items()}
    matching = [arm for arm in arms if all(_has(arm, key, values) for key, values in wanted.items())]
    return [arm for arm in matching if not arm.control or CONTROL_KNOBS[arm.control] in wanted]


def _has(arm: Arm, key: str, values: Sequence[str]) -> bool:
    value_of_arm = value_of(arm, key)
    return value_of_arm is not None and any(labels.equal(value_of_arm, value) for value in values)


def value_of(arm: Arm, key: str) -> str | None:
    """The value of a knob of this arm, typed or by default, as text; None if it has none."""
    if key in arm.knobs:
        return arm.knobs[key]
    value = arm.first.knob(key)
    return None if value is None or value == "" else labels.value_text(value)


def references(arms: Sequence[Arm], selector: str) -> dict[str, Arm]:
    """By group, the arm that each arm is compared to; {} if the selector names none.

    If the selector names several arms, it is for each other arm the one that agrees with it in every other knob, or in
    the most of them; else the single one without further knobs.
    """
    candidates = select(arms, selector)
    if len(candidates) == 1:
        return {arm.group_id: candidates[0] for arm in arms if arm is not candidates[0]}
    selector_keys = set(labels.parse(selector))
    plain = [arm for arm in candidates if set(arm.knobs) <= selector_keys | arm.tuned]
    by_group: dict[str, Arm] = {}
    for arm in arms:
        lacking = {} if arm in candidates else {c: _num_lacking(c, arm, selector_keys) for c in candidates}
        least = min(lacking.values(), default=math.inf)
        nearest = [candidate for candidate, number in lacking.items() if number == least < math.inf]
        unique = next((few[0] for few in (nearest, plain) if len(few) == 1), arm)
        if unique is not arm:
            by_group[arm.group_id] = unique
    return by_group


def as_arm(selector: str) -> str:
    """The selector among evaluated policies, which have no step 0: `base` is the arm of that name."""
    return EVALUATED_BASE if selector == BASE else selector


def _num_lacking(candidate: Arm, arm: Arm, named: Iterable[str]) -> float:
    """The number of knobs that the arm has and the candidate lacks or cannot have; infinite if they differ in another
    knob of either, except the named ones. A knob that was typed as null is the same as one without a value."""
    keys = {*candidate.knobs, *arm.knobs} - set(named) - candidate.tuned
    pairs = [(value_of(candidate, key), value_of(arm, key) or "null") for key in keys]
    agree = all(a is None or labels.equal(a, b) for a, b in pairs)
    return sum(a is None and b != "null" for a, b in pairs) if agree else math.inf


def default_reference(arms: Sequence[Arm], baseline: str) -> dict[str, Arm]:
    """By group, the arm that each arm is compared to: of evaluated policies the base policy, whether or not the newest
    launch evaluated it too; else the study's baseline, else GRPO, else the first arm; {} for a single arm."""
    for selector in filter(None, (EVALUATED_BASE, baseline, "loss=grpo")):
        if found := references(arms, selector):
            return found
    first = next((arm for arm in arms if not arm.control), None)
    return {arm.group_id: first for arm in arms if first is not None and arm is not first}


def reference_of(arms: Sequence[Arm], selector: str, baseline: str) -> dict[str, Arm]:
    """By group, the arm that each arm is compared to: `selector`, a selector, or "" for the default. Raises LookupError
    for an ill-formed selector."""
    try:
        return references(arms, selector) if selector else default_reference(arms, baseline)
    except ValueError as error:
        raise LookupError(f"--against: {error}") from None


def no_reference(arms: Sequence[Arm], selector: str) -> str:
    """Why no arm has a reference by this selector, and what can be typed instead."""
    candidates = select(arms, selector)
    as_typed = [" ".join(f"{key}={value}" for key, value in arm.knobs.items()) for arm in candidates or arms]
    listed = ", ".join(f"'{text}'" for text in dict.fromkeys(as_typed) if text) or "none with a swept knob"
    if not candidates:
        return f"there is no such arm. Arms: {listed}."
    if len(candidates) == len(arms):
        return f"every arm is one, and there is none to compare to it. Arms: {listed}."
    return (
        f"{len(candidates)} arms are that, and no other arm agrees with just one of them in the other knobs. Type one "
        f"of {listed}."
    )


def ordered(arms: Iterable[Arm], swept: Mapping[str, Sequence[str]]) -> list[Arm]:
    """The arms by the values of their knobs: numbers ascending, words in the order in which they were typed; an arm
    without a knob comes first."""
    unordered = list(arms)
    keys = list(dict.fromkeys([*swept, *(key for arm in unordered for key in arm.knobs)]))
    values_of = {
        key: list(dict.fromkeys([*swept.get(key, ()), *(a.knobs[key] for a in unordered if key in a.knobs)]))
        for key in keys
    }

    def place(arm: Arm, key: str) -> tuple[float, ...]:
        value = arm.knobs.get(key)
        if value is None:
            return (-1.0,)
        number = labels.number(value)
        return (1.0, values_of[key].index(value)) if math.isnan(number) else (0.0, number)

    return sorted(unordered, key=lambda arm: [place(arm, key) for key in keys])


# --- the sides of a claim


class NotTested(Exception):
    """Raised, with the reason, if the arms cannot test a claim. seeds: whether more seeds would change that."""

    def __init__(self, why: str, *, seeds: bool = False) -> None:
        super().__init__(why)
        self.seeds = seeds


def reference_of_claim(claim: Claim, baseline: str) -> str:
    """The selector of the arms that the claim's arms are compared to. baseline: of the study, "" for none."""
    return claim.against or baseline or "loss=grpo"


def sides(claim: Claim, reference: str, arms: Sequence[Arm]) -> dict[str, tuple[Sequence[Arm], Sequence[Arm]]]:
    """By label, the comparisons of a claim: (arms, their reference arms). A side with several arms is their mean.

    A reference arm without a reference of its own is left out. arms: of one setting. Raises NotTested.
    """
    claimed, reference_arms = select(arms, claim.arm), select(arms, reference)
    if not reference_arms:
        raise NotTested(f"there is no arm {reference} to compare to")
    if claim.of == "mean":
        if {arm.group_id for arm in claimed} == {arm.group_id for arm in reference_arms}:
            raise NotTested(_with_itself(claim, reference))
        return {f"mean of {len(claimed)} arms": (claimed, reference_arms)}
    against = references(arms, reference)
    with_reference = [arm for arm in claimed if arm.group_id in against]
    if alone := [arm.label for arm in claimed if arm.group_id not in against and arm not in reference_arms]:
        raise NotTested(f"no arm {reference} agrees in all else with {'; '.join(alone)}")
    if not with_reference:
        raise NotTested(_with_itself(claim, reference))
    return {arm.label: ([arm], [against[arm.group_id]]) for arm in with_reference}


def _with_itself(claim: Claim, reference: str) -> str:
    return f"what has {claim.arm} is itself what it is compared to, {reference}"


def trend(claim: Claim, arms: Sequence[Arm]) -> list[Arm]:
    """The arms of a trend, by ascending value of its knob; arms without this knob have no part. Raises NotTested."""
    with_knob = [(value, arm) for arm in select(arms, claim.arm) if (value := value_of(arm, claim.knob)) is not None]
    if names := sorted({value for value, _ in with_knob if math.isnan(labels.number(value))}):
        raise NotTested(f"a trend needs numbers, and {claim.knob} is {', '.join(names)} too")
    along = sorted(((labels.number(value), arm) for value, arm in with_knob), key=lambda pair: pair[0])
    values = [value for value, _ in along]
    if len(set(values)) < 3 or len(set(values)) < len(values):
        raise NotTested(f"a trend needs one arm at each of three or more values of {claim.knob}")
    return [arm for _, arm in along]


def untested(claim: Claim, reference: str, arms: Sequence[Arm]) -> str:
    """Why a claim cannot be tested by the arms of one setting; "" if it can."""
    try:
        _ = trend(claim, arms) if claim.knob else sides(claim, reference, arms)
    except NotTested as error:
        return str(error)
    return ""
