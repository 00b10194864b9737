"""What may be compared: the arms of one setting (problems, base policy, length, evaluation) and their metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.scores.arm import Arm, arms, settings
from analysis.scores.metric import AVERAGE, Metric, benchmarks, widest


@dataclass(frozen=True)
class Comparable:
    """The arms of one setting. name: how it differs from the study's other settings; "" if it is the only one."""

    name: str
    arms: tuple[Arm, ...]
    sources: tuple[str, ...]
    metrics: list[Metric]

    @property
    def lad(self) -> list[Arm]:
        """The arms of LAD with an η, by divergence and ascending 1/η, without controls."""
        return [a for a in self.arms if a.loss == "lad" and a.eta > 0 and not a.control]

    @property
    def grpo(self) -> list[Arm]:
        """The arms of GRPO, without controls."""
        return [a for a in self.arms if a.loss == "grpo" and not a.control]

    @property
    def overall(self) -> str:
        """The column that summarises a row: the average, or the only benchmark."""
        return self.sources[0] if len(self.sources) == 1 else AVERAGE

    @property
    def shown(self) -> list[Metric]:
        return widest(self.metrics)

    def titled(self, title: str) -> str:
        return f"{title}, {self.name}" if self.name else title


def by_setting(frames: Frames, chosen: Iterable[Arm] | None = None, *, on_problems: bool = True) -> list[Comparable]:
    """The settings of all arms, or of the chosen ones. on_problems: only settings in which problems were evaluated,
    which excludes bandits.
    """
    comparables: list[Comparable] = []
    for name, of_setting in settings(arms(frames) if chosen is None else chosen).items():
        sources, metrics = benchmarks(frames, [i for arm in of_setting for i in arm.run_ids])
        if metrics or not on_problems:
            comparables.append(Comparable(name, tuple(of_setting), sources, metrics))
    return comparables


def lad_settings(frames: Frames, *, etas: int = 1) -> list[Comparable]:
    """The settings in which LAD ran with at least so many values of η."""
    return [c for c in by_setting(frames) if len({a.eta for a in c.lad}) >= etas]


def shown(of_settings: Sequence[Comparable]) -> tuple[str, ...]:
    """The names of the metrics that tables over these settings print, avg@n first."""
    metrics = {metric for setting in of_settings for metric in setting.shown}
    return tuple(map(str, sorted(metrics, key=lambda m: (m.kind, m.k))))
