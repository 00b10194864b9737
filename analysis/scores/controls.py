"""Arms compared to their controls (`controls=`): random rewards, flipped rewards, no learning, and other seeds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analysis.frames.frames import Frames
from analysis.scores import labels
from analysis.scores.arm import FLIPPED, MAJORITY, RANDOM, SEEDS, STILL, Arm
from analysis.scores.cell import cell
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import study_level
from analysis.scores.contrast import Difference, difference
from analysis.scores.crossed import Interval
from analysis.scores.metric import Metric
from analysis.scores.selection import default_reference, value_of

CONTROL_NAMES = {
    **{RANDOM: "random rewards", FLIPPED: "flipped rewards", MAJORITY: "agreement as reward"},
    STILL: "no learning (lr = 0)",
}


@dataclass(frozen=True)
class AgainstControl:
    """An arm against one control, in one metric.

    passed: the arm is decidedly above the control; for the noise floor (SEEDS): its difference to the reference is
    larger than that of the reference to itself with other seeds.
    """

    arm: str
    control: str
    metric: Metric
    effect: float
    interval: Interval
    seeds: int
    floor: float = math.nan  # for SEEDS only: the difference of the reference to itself with other seeds

    @property
    def passed(self) -> bool:
        if self.control == SEEDS:
            return abs(self.effect) > abs(self.floor)
        return self.effect > 0 and self.interval.excludes(0)


def against_controls(frames: Frames) -> list[AgainstControl]:
    """Every arm against each of its controls, in the first metric that tables show; [] without controls."""
    against_controls: list[AgainstControl] = []
    for setting in by_setting(frames):
        arms = [arm for arm in setting.arms if not arm.control and not arm.from_other_study]
        for control in (arm for arm in setting.arms if arm.control):
            against_controls += _against_control(frames, setting, control, arms)
    return against_controls


def _against_control(
    frames: Frames, setting: Comparable, control: Arm, arms: Sequence[Arm]
) -> Iterable[AgainstControl]:
    if control.control == SEEDS:
        yield from _against_noise_floor(frames, setting, control, arms)
        return
    for arm in arms if control.control == STILL else [arm for arm in arms if _same_but_for_rewards(arm, control)]:
        to_control = _difference(frames, setting, arm, control)
        if to_control is not None:
            yield _held(frames, setting, arm, control.control, to_control)


def _against_noise_floor(
    frames: Frames, setting: Comparable, control: Arm, arms: Sequence[Arm]
) -> Iterable[AgainstControl]:
    """Each arm against the difference of its reference to itself, which `control` repeats with other seeds."""
    reference = next((arm for arm in arms if arm.group_id == control.own_group), None)
    floor = _difference(frames, setting, control, reference, other_seeds=True) if reference is not None else None
    if reference is None or floor is None:
        return
    against = default_reference(arms, frames.baseline)
    for arm in (arm for arm in arms if against.get(arm.group_id) is reference):
        to_reference = _difference(frames, setting, arm, reference)
        if to_reference is not None:
            yield replace(_held(frames, setting, arm, SEEDS, to_reference), floor=floor.effect)


def _held(frames: Frames, setting: Comparable, arm: Arm, control: str, measured: Difference) -> AgainstControl:
    interval = measured.summary.interval(study_level(frames))
    return AgainstControl(arm.label, control, setting.shown[0], measured.effect, interval, len(measured.seeds))


def _difference(
    frames: Frames, setting: Comparable, arm: Arm, control: Arm, *, other_seeds: bool = False
) -> Difference | None:
    """arm − control. other_seeds: pair the seeds of the two in their order, which is sound as all are independent."""
    of_arm, of_control = (cell(frames, side, setting.shown[0], setting.sources).scores for side in (arm, control))
    if of_arm is None or of_control is None:
        return None
    if other_seeds:
        count = min(len(of_arm.seeds), len(of_control.seeds))
        of_arm, of_control = of_arm.of_seeds(of_arm.seeds[:count]), of_control.of_seeds(of_control.seeds[:count])
        of_arm = replace(of_arm, seeds=of_control.seeds)
    return difference(of_arm, of_control)


def _same_but_for_rewards(arm: Arm, control: Arm) -> bool:
    keys = {*arm.knobs, *control.knobs} - {"rollout.reward"} - arm.tuned  # a control is tuned as an arm of its own
    pairs = [(value_of(arm, key), value_of(control, key)) for key in keys]
    return all(a == b or (a is not None and b is not None and labels.equal(a, b)) for a, b in pairs)
