"""Arms that differ by one knob: the rows of an ablation's table, a line of its figure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from analysis.frames.frames import Frames
from analysis.scores.arm import Arm, arms, without
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.metric import Kind, Metric


@dataclass(frozen=True)
class Line:
    """Arms of one loss that differ by one knob alone, in the order of its values."""

    name: str  # the loss, and what distinguishes it from the setting's other lines
    loss: str
    values: tuple[Any, ...]
    arms: tuple[Arm, ...]


def lines(
    frames: Frames, knob: str, *, losses: Sequence[str] = (), least: int = 2
) -> list[tuple[Comparable, list[Line]]]:
    """Every setting with its lines along `knob`, a config key, of at least `least` values.

    losses: only arms of these, if any are named. Controls, and runs whose config lacks the knob, belong to no line.
    """
    chosen = [a for a in arms(frames) if (a.loss in losses or not losses) and not a.control]
    chosen = [a for a in chosen if a.first.knob(knob) is not None]
    lines_of: list[tuple[Comparable, list[Line]]] = []
    for setting in by_setting(frames, chosen):
        groups: dict[tuple[str, str, str], dict[Any, Arm]] = {}
        for arm in setting.arms:
            # Tuned knobs may differ along a line: each arm has its own best value of them.
            keys = {knob, *arm.tuned}
            group = groups.setdefault((arm.method, without(arm.scales, keys), without(arm.variant, keys)), {})
            group[arm.first.knob(knob)] = arm
        num_alike = Counter((method, variant) for method, _, variant in groups)
        of_setting = [
            _line(method, (scales if num_alike[method, variant] > 1 else "", variant), group)
            for (method, scales, variant), group in groups.items()
            if len(group) >= least
        ]
        on_lines = [arm for line in of_setting for arm in line.arms]
        lines_of += [(narrowed, of_setting) for narrowed in by_setting(frames, on_lines) if of_setting]
    return lines_of


def _line(method: str, details: Sequence[str], group: Mapping[Any, Arm]) -> Line:
    """details: parts that distinguish the line from others of its method; empty ones are left out."""
    # Numbers ascend; names keep the order of the runs.
    values = sorted(group) if all(isinstance(v, Number) for v in group) else list(group)
    distinction = ", ".join(filter(None, details))
    name = f"{method} ({distinction})" if distinction else method
    return Line(name, group[values[0]].loss, tuple(values), tuple(group[v] for v in values))


def metrics(setting: Comparable) -> dict[str, Metric]:
    """By name, avg@n and every pass@k except pass@1, which is the same number as avg@n."""
    return {str(m): m for m in setting.metrics if (m.kind, m.k) != (Kind.PASS, 1)}
