"""Evaluation scores against the training step: a line per arm, the mean over its seeds, with a 95 % band over them."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import BAND, by_arm, drawn_as, focus
from analysis.report.looks import Look
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
    several = any(len(arm.run_ids) > 1 for setting in settings for arm in setting.arms)
    rows = [(setting, setting.shown) for setting in settings]
    drawing = by_arm(frames, rows, partial(_line, frames), height=2.9, remark=BAND if several else "")
    for axes in (axes for axes in drawing.axes if axes.get_visible()):
        focus(axes)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _line(frames: Frames, axes: Axes, setting: Comparable, metric: Metric, arm: Arm, look: Look) -> Artist | None:
    trajectory = curve(frames, arm, metric, setting.sources)
    if not trajectory.steps:
        return None
    low, high, mean = ([100 * v for v in values] for values in (trajectory.low, trajectory.high, trajectory.mean))
    if any(map(math.isfinite, low)):  # the rest, as where all seeds agree, stays blank
        axes.fill_between(trajectory.steps, low, high, color=look.colour, alpha=0.12, linewidth=0)
    return axes.plot(trajectory.steps, mean, markersize=3.5, linewidth=1.2, **drawn_as(look))[0]
