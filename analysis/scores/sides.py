"""The two sides of a claim: which arms are compared to which. It applies to arms that have run and to planned ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.scores import labels
from analysis.scores.arm import Arm
from analysis.scores.claim import Claim
from analysis.scores.selection import references, select, value_of


class NotTested(Exception):
    """Raised, with the reason, if the arms cannot test a claim. seeds: whether more seeds would change that."""

    def __init__(self, why: str, *, seeds: bool = False) -> None:
        super().__init__(why)
        self.seeds = seeds


def reference_of(claim: Claim, baseline: str) -> str:
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
