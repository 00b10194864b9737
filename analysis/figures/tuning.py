"""Validation score against the tuned knob, a curve per arm."""

import math

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import drawn_as, legend
from analysis.report.looks import numbered
from analysis.scores import labels
from analysis.scores.tuning import Tuned, judge, tuned, tuning_runs

QUESTION = "How does each arm depend on the tuned knob, and is its best value inside the grid?"


def figure(frames: Frames) -> Figure | None:
    """None where no arm was tuned, or no tuned knob is a number."""
    tunings, metric = tuned(frames), judge(tuning_runs(frames))
    if not tunings or metric is None:
        return None
    knobs = [key for key, value in tunings[0].values[0].knobs.items() if not math.isnan(labels.number(value))]
    if not knobs:
        return None
    knob = knobs[0]
    drawing = Figure(figsize=(style.WIDTH, 3.1), layout="constrained")
    axes = drawing.subplots()
    handles = {}
    for index, tuning in enumerate(tunings):
        look = numbered(index)
        x, y = _best_at_each(tuning, knob)
        handles[tuning.arm] = axes.plot(x, y, **drawn_as(look))[0]
        if tuning.picked is not None:
            at = labels.number(tuning.picked.knobs[knob])
            axes.plot([at], [100 * tuning.picked.mean], "o", ms=13, mfc="none", mec=look.colour)
    values = sorted({labels.number(tried.knobs[knob]) for tuning in tunings for tried in tuning.values})
    if values[0] > 0 and values[-1] / values[0] >= 5:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(f"{knob} (circle: picked)")
    axes.set_ylabel(f"{metric} of the validation split, %")
    legend(drawing, handles)
    return drawing


def _best_at_each(tuning: Tuned, knob: str) -> tuple[list[float], list[float]]:
    """(the values of a knob, the best mean value each over all other tuned knobs, in per cent)."""
    best: dict[float, float] = {}
    for tried in tuning.values:
        value = labels.number(tried.knobs[knob])
        if math.isfinite(tried.mean):
            best[value] = max(best.get(value, -math.inf), 100 * tried.mean)
    return sorted(best), [best[value] for value in sorted(best)]
