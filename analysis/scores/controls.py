"""Arms held against their controls: random rewards, flipped ones, none at all, and chance (`controls=`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analysis.frames.frames import Frames
from analysis.scores import study, words
from analysis.scores.arm import FLIPPED, RANDOM, SEEDS, STILL, Arm
from analysis.scores.cell import cell
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.contrast import Difference, difference
from analysis.scores.crossed import Interval
from analysis.scores.metric import Metric
from analysis.scores.selection import default_reference, value_of

IN_WORDS = {RANDOM: "random rewards", FLIPPED: "flipped rewards", STILL: "no learning (lr = 0)"}


@dataclass(frozen=True)
class Held:
    """An arm against one control, in one metric. passed: it is decidedly above; for the noise floor (SEEDS): its
    difference to the reference is larger than that of the reference to itself under other seeds."""

    arm: str
    control: str
    metric: Metric
    effect: float
    interval: Interval
    seeds: int
    floor: float = math.nan  # of SEEDS alone: what the reference differs from itself

    @property
    def passed(self) -> bool:
        if self.control == SEEDS:
            return abs(self.effect) > abs(self.floor)
        return self.effect > 0 and self.interval.excludes(0)


def held(frames: Frames) -> list[Held]:
    """Every arm against each of its controls, in the first metric shown; [] where there are none."""
    found: list[Held] = []
    for setting in by_setting(frames):
        ours = [arm for arm in setting.arms if not arm.control and not arm.borrowed]
        for control in (arm for arm in setting.arms if arm.control):
            found += _of_control(frames, setting, control, ours)
    return found


def _of_control(frames: Frames, setting: Comparable, control: Arm, ours: Sequence[Arm]) -> Iterable[Held]:
    if control.control == SEEDS:
        yield from _above_the_floor(frames, setting, control, ours)
        return
    for arm in ours if control.control == STILL else [arm for arm in ours if _same_but_for_rewards(arm, control)]:
        found = _difference(frames, setting, arm, control)
        if found is not None:
            yield _held(frames, setting, arm, control.control, found)


def _above_the_floor(frames: Frames, setting: Comparable, control: Arm, ours: Sequence[Arm]) -> Iterable[Held]:
    """The seeds of the control stand for those of the reference, in their order: all are independent."""
    reference = next((arm for arm in ours if arm.group_id == control.own_group), None)
    floor = _difference(frames, setting, control, reference, other_seeds=True) if reference is not None else None
    if reference is None or floor is None:
        return
    against = default_reference(ours, study.baseline(frames))
    for arm in (a for a in ours if against.get(a.group_id) is reference):
        found = _difference(frames, setting, arm, reference)
        if found is not None:
            yield replace(_held(frames, setting, arm, SEEDS, found), floor=floor.effect)


def _held(frames: Frames, setting: Comparable, arm: Arm, control: str, found: Difference) -> Held:
    interval = found.summary.interval(study.level(frames))
    return Held(arm.label, control, setting.shown[0], found.effect, interval, len(found.seeds))


def _difference(
    frames: Frames, setting: Comparable, arm: Arm, control: Arm, *, other_seeds: bool = False
) -> Difference | None:
    own, theirs = (cell(frames, one, setting.shown[0], setting.sources).scores for one in (arm, control))
    if own is None or theirs is None:
        return None
    if other_seeds:
        common = min(len(own.seeds), len(theirs.seeds))
        own, theirs = own.of_seeds(own.seeds[:common]), theirs.of_seeds(theirs.seeds[:common])
        own = replace(own, seeds=theirs.seeds)
    return difference(own, theirs)


def _same_but_for_rewards(arm: Arm, control: Arm) -> bool:
    keys = {*arm.knobs, *control.knobs} - {"rollout.reward"}
    pairs = [(value_of(arm, key), value_of(control, key)) for key in keys]
    return all(a == b or (a is not None and b is not None and words.equal(a, b)) for a, b in pairs)
