"""Saturating curves through the scores of the arms, with simultaneous bands, on to twice the steps."""

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
from analysis.scores.metric import Metric
from analysis.scores.saturation import LEAST_EVALUATIONS, saturation_of
from analysis.scores.trajectory import curve, settings_with_curves

QUESTION = "Where does training tend to, and is it worth twice the steps?"
ASKED = True
REMARK = (
    "marks: means over seeds (without a curve: the table Saturation says why); band: 95 %, simultaneous over the "
    "steps; beyond the last mark a forecast"
)


def figure(frames: Frames) -> Figure | None:
    """None unless some run has five evaluations."""
    rows = [(setting, setting.shown) for setting in settings_with_curves(frames, LEAST_EVALUATIONS)]
    draw = partial(by_arm, frames, rows, partial(_curve, frames), height=2.9, remark=REMARK)
    return style.with_style(draw) if rows else None


def _curve(frames: Frames, axes: Axes, setting: Comparable, metric: Metric, arm: Arm, look: Look) -> Artist | None:
    axes.set_xlabel("step")
    fit, measured = saturation_of(frames, arm, metric, setting.sources), curve(frames, arm, metric, setting.sources)
    marks = axes.plot(measured.steps, [100 * mean for mean in measured.mean], **{**drawn_as(look), "linestyle": ""})
    if isinstance(fit, str):
        return marks[0]
    axes.fill_between(fit.steps, 100 * fit.low, 100 * fit.high, color=look.colour, alpha=0.12, linewidth=0)
    return axes.plot(fit.steps, 100 * fit.mean, linewidth=1.2, **drawn_as(look, marked=False))[0]
