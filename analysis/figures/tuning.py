"""Validation score against the tuned knob, a curve per arm."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import legend, look
from analysis.scores import words
from analysis.scores.tuning import Tuned, judge, tuned, tuning_runs

QUESTION = "How does each arm depend on the tuned knob, and is its best value inside the grid?"


def figure(frames: Frames) -> Figure | None:
    """None where nothing was tuned, or no tuned knob is a number."""
    found, metric = tuned(frames), judge(tuning_runs(frames))
    if not found or metric is None:
        return None
    knobs = [key for key in found[0].values[0].knobs if not math.isnan(words.number(found[0].values[0].knobs[key]))]
    if not knobs:
        return None
    drawing = Figure(figsize=(style.WIDTH, 3.1), layout="constrained")
    axes = drawing.subplots()
    handles = {}
    for index, one in enumerate(found):
        colour, marker = look(index)
        x, y = _best_at_each(one, knobs[0])
        handles[one.arm] = axes.plot(x, y, color=colour, marker=marker)[0]
        if one.picked is not None:
            at = words.number(one.picked.knobs[knobs[0]])
            axes.plot([at], [100 * one.picked.mean], "o", ms=13, mfc="none", mec=colour)
    values = sorted({words.number(tried.knobs[knobs[0]]) for one in found for tried in one.values})
    if values[0] > 0 and values[-1] / values[0] >= 5:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(f"{knobs[0]} (circle: picked)")
    axes.set_ylabel(f"{metric} of the validation split, %")
    legend(drawing, handles)
    return drawing


def _best_at_each(one: Tuned, knob: str) -> tuple[list[float], list[float]]:
    """By value of the knob, the best mean over all else that was tuned."""
    best: dict[float, float] = {}
    for tried in one.values:
        at = words.number(tried.knobs[knob])
        if math.isfinite(tried.mean):
            best[at] = max(best.get(at, -math.inf), 100 * tried.mean)
    return sorted(best), [best[at] for at in sorted(best)]
