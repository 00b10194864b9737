"""Studies in which exact likelihood (loss cross_entropy) ran beside objectives that only use rewards."""

from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.scores import objective
from analysis.scores.arm import Arm, arms
from analysis.scores.comparable import by_setting
from analysis.scores.metric import Kind, Metric

EXACT = "cross_entropy"


@dataclass(frozen=True)
class Learner:
    """An arm with its objective and its rollouts per prompt, in which the arms of a contest differ: 0 samples if only
    the name of a planned run is known."""

    arm: Arm
    objective: str
    samples: int


@dataclass(frozen=True)
class LikelihoodComparison:
    """The learners of one setting, best known objective first, by rollouts; accuracy is avg@n on one benchmark.

    name: the task, and how the setting differs from the study's other settings.
    """

    name: str
    learners: tuple[Learner, ...]
    source: str
    metric: Metric

    @property
    def exact(self) -> list[Learner]:
        return [learner for learner in self.learners if learner.objective == EXACT]

    @property
    def rewarded(self) -> list[Learner]:
        return [learner for learner in self.learners if learner.objective != EXACT]

    @property
    def objectives(self) -> list[str]:
        return objective.ordered(learner.objective for learner in self.learners)


def contests(frames: Frames) -> list[LikelihoodComparison]:
    """A contest per setting in which exact likelihood and some other objective ran and were evaluated."""
    of_settings: list[LikelihoodComparison] = []
    for setting in by_setting(frames, [arm for arm in arms(frames) if not arm.control]):
        learners = [
            Learner(
                arm, objective.objective(arm.loss, arm.first.advantage), int(arm.first.knob("rollout.samples") or 0)
            )
            for arm in setting.arms
        ]
        order = objective.ordered(learner.objective for learner in learners)
        learners.sort(key=lambda learner: (order.index(learner.objective), learner.samples))
        averages = [m for m in setting.metrics if m.kind == Kind.AVG]
        if not averages:
            continue
        name = setting.titled(setting.arms[0].first.task)
        contest = LikelihoodComparison(name, tuple(learners), setting.sources[0], averages[-1])
        if contest.exact and contest.rewarded:
            of_settings.append(contest)
    return of_settings
