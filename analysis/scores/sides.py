"""The two sides of a claim: which arms are compared to which. The same of arms that have run and of planned ones."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.scores import words
from analysis.scores.arm import Arm
from analysis.scores.claim import Claim
from analysis.scores.selection import references, select, value_of


class NotTested(Exception):
    """Why the arms at hand cannot test a claim. seeds: more of them would."""

    def __init__(self, why: str, *, seeds: bool = False) -> None:
        super().__init__(why)
        self.seeds = seeds


def reference_of(claim: Claim, baseline: str) -> str:
    """What the claim's arms are compared to, as a selector. baseline: of the study, "" for none."""
    return claim.against or baseline or "loss=grpo"


def sides(claim: Claim, reference: str, arms: Sequence[Arm]) -> dict[str, tuple[Sequence[Arm], Sequence[Arm]]]:
    """What is compared, by its label: arms, and what they are compared to; several arms of a side by their mean. An arm
    that is named as a reference, and has none, is left out. arms: of one setting. Raises NotTested.
    """
    own, named = select(arms, claim.arm), select(arms, reference)
    if not named:
        raise NotTested(f"there is no arm {reference} to compare to")
    if claim.of == "mean":
        if {arm.group_id for arm in own} == {arm.group_id for arm in named}:
            raise NotTested(_with_itself(claim, reference))
        return {f"mean of {len(own)} arms": (own, named)}
    against = references(arms, reference)
    chosen = [arm for arm in own if arm.group_id in against]
    if alone := [arm.label for arm in own if arm.group_id not in against and arm not in named]:
        raise NotTested(f"no arm {reference} agrees in all else with {'; '.join(alone)}")
    if not chosen:
        raise NotTested(_with_itself(claim, reference))
    return {arm.label: ([arm], [against[arm.group_id]]) for arm in chosen}


def _with_itself(claim: Claim, reference: str) -> str:
    return f"what has {claim.arm} is itself what it is compared to, {reference}"


def trend(claim: Claim, arms: Sequence[Arm]) -> list[Arm]:
    """The arms of a trend, by ascending value of its knob. Raises NotTested."""
    valued = [(words.number(value_of(arm, claim.knob) or ""), arm) for arm in select(arms, claim.arm)]
    along = sorted(((value, arm) for value, arm in valued if value == value), key=lambda pair: pair[0])
    values = [value for value, _ in along]
    if len(set(values)) < 3 or len(set(values)) < len(values):
        raise NotTested(f"a trend needs one arm at each of three or more values of {claim.knob}")
    return [arm for _, arm in along]
