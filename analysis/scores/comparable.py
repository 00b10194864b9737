"""What may be compared: the arms of one setting (problems, base policy, length, evaluation) and what they report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.scores.arm import Arm, arms, settings
from analysis.scores.metric import AVERAGE, Metric, benchmarks, widest


@dataclass(frozen=True)
class Comparable:
    """`name` says how the setting differs from the others of the study; "" if it is the only one."""

    name: str
    arms: tuple[Arm, ...]
    sources: list[str]
    metrics: list[Metric]

    @property
    def lad(self) -> list[Arm]:
        """LAD with an η, by divergence and ascending 1/η; no controls."""
        return [a for a in self.arms if a.loss == "lad" and a.eta > 0 and not a.control]

    @property
    def grpo(self) -> list[Arm]:
        """No controls."""
        return [a for a in self.arms if a.loss == "grpo" and not a.control]

    @property
    def overall(self) -> str:
        """The column that sums a row up: the average, or the only benchmark."""
        return AVERAGE if len(self.sources) > 1 else self.sources[0]

    @property
    def shown(self) -> list[Metric]:
        return widest(self.metrics)

    def titled(self, title: str) -> str:
        return f"{title}, {self.name}" if self.name else title


def by_setting(frames: Frames, chosen: Iterable[Arm] | None = None, *, on_problems: bool = True) -> list[Comparable]:
    """The settings of all arms, or of those chosen. on_problems: only those in which problems were evaluated, which a
    bandit has none of.
    """
    everything = arms(frames) if chosen is None else list(chosen)
    found: list[Comparable] = []
    for name in settings(everything):
        here = tuple(a for a in everything if a.setting == name)
        sources, metrics = benchmarks(frames, [i for a in here for i in a.run_ids])
        if metrics or not on_problems:
            found.append(Comparable(name, here, sources, metrics))
    return found


def lad_settings(frames: Frames, *, etas: int = 1) -> list[Comparable]:
    """Those in which LAD ran with at least so many η."""
    return [c for c in by_setting(frames) if len({a.eta for a in c.lad}) >= etas]


def shown(found: Sequence[Comparable]) -> tuple[str, ...]:
    """The metrics that tables over these settings print, avg@n first."""
    return tuple(map(str, sorted({m for c in found for m in c.shown}, key=lambda m: (m.kind, m.k))))
