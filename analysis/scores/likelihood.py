"""Studies in which exact likelihood (loss cross_entropy) ran beside objectives that see rewards alone."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.frames.frame import Frame
from analysis.frames.load import Frames
from analysis.scores import objectives
from analysis.scores.arms import Arm, arms, settings
from analysis.scores.cells import Metric, benchmarks

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
        return objectives.ordered(x.objective for x in self.learners)


def contests(frames: Frames) -> list[Contest]:
    """A contest per setting in which exact likelihood and something else ran, and were evaluated."""
    everything = arms(frames.runs)
    if not everything:
        return []
    runs = frames.runs.set_index("run_id")
    found = []
    for name in settings(everything):
        here = [a for a in everything if a.setting == name]
        learners = [_learner(a, runs.loc[a.run_ids[0]]) for a in here]
        order = objectives.ordered(x.objective for x in learners)
        learners.sort(key=lambda x: (order.index(x.objective), x.samples))
        sources, metrics = benchmarks(frames, [i for a in here for i in a.run_ids])
        average = [m for m in metrics if m.kind == "avg"]
        if not average:
            continue
        task = str(runs.loc[here[0].run_ids[0], "task"])
        made = Contest(task, tuple(learners), sources[0], average[-1])
        if made.exact and made.rewarded:
            found.append(made)
    return found


def _learner(arm: Arm, run: Frame) -> Learner:
    """An arm and the row of its first run; 0 rollouts where a planned run left nothing but its name."""
    samples = run.get("config.rollout.samples")
    return Learner(arm, objectives.objective(arm.loss, run["advantage"]), 0 if pd.isna(samples) else int(samples))
