"""The frontier: pass@k and entropy against avg@k along training, a path per arm from the base policy to its end."""

from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import by_arm, drawn_as
from analysis.report.looks import Look
from analysis.scores.arm import Arm
from analysis.scores.comparable import Comparable
from analysis.scores.metric import Kind, Metric
from analysis.scores.trajectory import curve, settings_with_curves
from analysis.tables.frontier import metrics

QUESTION = "Which arm keeps more coverage and entropy at equal accuracy?"


def figure(frames: Frames) -> Figure | None:
    """None unless some run was evaluated during training, by avg@n and another metric."""
    with_others = [(setting, _others(frames, setting)) for setting in settings_with_curves(frames)]
    rows = [(setting, others) for setting, others in with_others if others]
    draw = partial(by_arm, frames, rows, partial(_path, frames), height=2.9, remark="large mark: the last evaluation")
    return style.with_style(draw) if rows else None


def _others(frames: Frames, setting: Comparable) -> list[Metric]:
    """The metrics that are drawn against avg@n; [] where avg@n was not measured."""
    measured = metrics(frames, setting)
    others = [m for m in measured if m.kind != Kind.AVG]
    return others if len(others) < len(measured) else []


def _path(frames: Frames, axes: Axes, setting: Comparable, metric: Metric, arm: Arm, look: Look) -> Artist | None:
    """Draw the evaluations of an arm in their order, the last one as a large mark."""
    accuracy = next(m for m in setting.shown if m.kind == Kind.AVG)
    axes.set(xlabel=f"{accuracy}, %", ylabel=f"{metric}, {metric.unit}")
    x, y = (curve(frames, arm, m, setting.sources) for m in (accuracy, metric))
    steps = [step for step in x.steps if step in y.steps]
    if not steps:
        return None
    xs = [100 * x.mean[x.steps.index(step)] for step in steps]
    ys = [metric.scale * y.mean[y.steps.index(step)] for step in steps]
    axes.plot(xs[-1], ys[-1], marker=look.marker, color=look.colour, markersize=6)
    return axes.plot(xs, ys, markersize=2.5, linewidth=1.1, **drawn_as(look))[0]
