"""Studies in which exact likelihood (loss cross_entropy) ran beside objectives that see rewards alone."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.scores import objective
from analysis.scores.arm import Arm, arms
from analysis.scores.comparable import by_setting
from analysis.scores.metric import Kind, Metric

EXACT = "cross_entropy"


@dataclass(frozen=True)
class Learner:
    """An arm and what tells it from the others here: its objective and its rollouts per prompt."""

    arm: Arm
    objective: str
    samples: int


@dataclass(frozen=True)
class Contest:
    """The learners of one setting, best known objective first, by rollouts; accuracy is avg@n on one benchmark."""

    name: str
    learners: tuple[Learner, ...]
    source: str
    metric: Metric

    @property
    def exact(self) -> list[Learner]:
        return [x for x in self.learners if x.objective == EXACT]

    @property
    def rewarded(self) -> list[Learner]:
        return [x for x in self.learners if x.objective != EXACT]

    @property
    def objectives(self) -> list[str]:
        return objective.ordered(x.objective for x in self.learners)


def contests(frames: Frames) -> list[Contest]:
    """A contest per setting in which exact likelihood and something else ran, and were evaluated."""
    found: list[Contest] = []
    for setting in by_setting(frames, [arm for arm in arms(frames) if not arm.control]):
        learners = [_learner(arm) for arm in setting.arms]
        order = objective.ordered(x.objective for x in learners)
        learners.sort(key=lambda x: (order.index(x.objective), x.samples))
        average = [m for m in setting.metrics if m.kind == Kind.AVG]
        if average:
            contest = Contest(setting.arms[0].first.task, tuple(learners), setting.sources[0], average[-1])
            found += [contest] if contest.exact and contest.rewarded else []
    return found


def _learner(arm: Arm) -> Learner:
    """0 rollouts where a planned run left nothing but its name."""
    samples = arm.first.knob("rollout.samples")
    return Learner(arm, objective.objective(arm.loss, arm.first.advantage), int(samples or 0))
