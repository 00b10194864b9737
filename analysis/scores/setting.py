"""What may be compared: the arms of one setting (problems, base policy, length, evaluation) and what they report."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.frames.load import Frames
from analysis.scores.arms import Arm, arms, settings
from analysis.scores.cells import AVERAGE, Metric, benchmarks


@dataclass(frozen=True)
class Setting:
    """`name` says how it differs from the other settings of the study; "" if it is the only one."""

    name: str
    arms: tuple[Arm, ...]
    sources: list[str]
    metrics: list[Metric]

    @property
    def lad(self) -> list[Arm]:
        """LAD with an η, by divergence and ascending 1/η."""
        return [a for a in self.arms if a.loss == "lad" and a.eta > 0]

    @property
    def grpo(self) -> list[Arm]:
        return [a for a in self.arms if a.loss == "grpo"]

    @property
    def overall(self) -> str:
        """The column that sums a row up: the average, or the only benchmark."""
        return AVERAGE if len(self.sources) > 1 else self.sources[0]

    @property
    def shown(self) -> list[Metric]:
        """The widest avg@n and pass@k: what the paper prints."""
        widest = {m.kind: m for m in sorted(self.metrics, key=lambda m: m.k)}
        return [widest[kind] for kind in ("avg", "pass") if kind in widest]

    def titled(self, title: str) -> str:
        return f"{title}, {self.name}" if self.name else title


def comparisons(frames: Frames, *, etas: int = 1) -> list[Setting]:
    """The settings in which LAD ran with at least so many η and something was evaluated."""
    found = []
    everything = arms(frames.runs)
    for name in settings(everything):
        here = tuple(a for a in everything if a.setting == name)
        made = Setting(name, here, *benchmarks(frames, [i for a in here for i in a.run_ids]))
        if len({a.eta for a in made.lad}) >= etas and made.metrics:
            found.append(made)
    return found


def shown(found: list[Setting]) -> tuple[str, ...]:
    """The metrics that tables over these settings print, avg@n first."""
    return tuple(map(str, sorted({m for s in found for m in s.shown}, key=lambda m: (m.kind, m.k))))
