"""The rollout figure: a metric against rollouts per prompt, a line per objective (MaxRL, figure 3)."""

from __future__ import annotations

import math

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import draw, look
from analysis.scores.ablation import Line, base, lines, metrics, overall
from analysis.scores.comparable import Comparable
from analysis.tables.rollout_scaling import KNOB

QUESTION = "Whose pass@k keeps growing with the number of rollouts per prompt?"


def figure(frames: Frames) -> Figure | None:
    """None unless some objective ran with two numbers of rollouts per prompt."""
    found = lines(frames, KNOB)
    return style.drawn(lambda: _draw(frames, found)) if found else None


def _draw(frames: Frames, found: list[tuple[Comparable, list[Line]]]) -> Figure:
    drawing, panels = style.panels([setting for setting, _ in found], height=2.75)
    of = {setting.name: made for setting, made in found}
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        handles |= _panel(axes, frames, setting, of[setting.name], str(metric))
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6))
    return drawing


def _panel(axes: Axes, frames: Frames, setting: Comparable, made: list[Line], metric: str) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    if metric not in metrics(setting):  # pass@1 alone: the same number as avg@n
        axes.set_visible(False)
        return handles
    for i, line in enumerate(made):
        found = [overall(frames, arm, metrics(setting)[metric], setting) for arm in line.arms]
        handles[line.name] = draw(axes, [float(v) for v in line.values], found, *look(i, line.loss))
    first = base(frames, metrics(setting)[metric], setting).mean
    if math.isfinite(first):
        handles["base policy"] = axes.axhline(100 * first, color=style.BASE, linestyle=":", linewidth=1.4)
    ticks = sorted({v for line in made for v in line.values})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axes.minorticks_off()
    axes.set_xlabel("rollouts per prompt N")
    return handles
