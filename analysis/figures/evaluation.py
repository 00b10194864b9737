"""Evaluation scores against the training step: a line per arm, the mean over its seeds, with a 95 % band over them."""

import math
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import BAND, drawn_as, focus, left_out, legend, legible
from analysis.report.looks import Look, looks_of
from analysis.scores.arm import Arm
from analysis.scores.comparable import Comparable
from analysis.scores.metric import Metric
from analysis.scores.trajectory import curve, settings_with_curves

QUESTION = "How do accuracy and coverage move along training?"


def figure(frames: Frames) -> Figure | None:
    """None unless some run was evaluated during training."""
    settings = settings_with_curves(frames)
    return style.with_style(lambda: _draw(frames, settings)) if settings else None


def _draw(frames: Frames, settings: Sequence[Comparable]) -> Figure:
    drawing, panels = style.panels([(setting, setting.shown) for setting in settings], height=2.9)
    handles: dict[str, Artist] = {}
    remarks: list[str] = []
    for axes, setting, metric in panels:
        shown, remark = legible(setting.arms, frames.swept)
        remarks += [r for r in (remark, *left_out(shown)) if r and r not in remarks]
        for arm, look in zip(shown, looks_of(shown, frames.baseline), strict=True):
            line = _line(axes, frames, setting, metric, arm, look)
            handles |= {arm.short: line} if line is not None else {}
        focus(axes)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    several = any(len(arm.run_ids) > 1 for setting in settings for arm in setting.arms)
    legend(drawing, handles, "; ".join([*remarks, *([BAND] if several else [])]))
    return drawing


def _line(axes: Axes, frames: Frames, setting: Comparable, metric: Metric, arm: Arm, look: Look) -> Artist | None:
    trajectory = curve(frames, arm, metric, setting.sources)
    if not trajectory.steps:
        return None
    low, high, mean = ([100 * v for v in values] for values in (trajectory.low, trajectory.high, trajectory.mean))
    if any(map(math.isfinite, low)):  # the rest, as where all seeds agree, stays blank
        axes.fill_between(trajectory.steps, low, high, color=look.colour, alpha=0.12, linewidth=0)
    return axes.plot(trajectory.steps, mean, markersize=3.5, linewidth=1.2, **drawn_as(look))[0]
