"""The figure of DPH-RL's divergences: a row per arm with its styles of answers, what it kept and found, accuracy."""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import INTERVAL, legend
from analysis.report.looks import lighter
from analysis.scores.retention import BASE, EFFECTIVE, EXPLORE, KEEP, Retention, retentions

QUESTION = "Does a divergence that covers mass keep more styles and more solved prompts than reverse KL or nothing?"
STYLE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
DOTS = {KEEP: ("o", "#0072B2"), EXPLORE: ("D", "#D55E00"), "avg": ("s", "#333333"), "pass": ("^", "#009E73")}


def figure(frames: Frames) -> Figure | None:
    """None if no DPH-RL run was evaluated."""
    measured = retentions(frames)
    return style.with_style(lambda: _draw(measured)) if measured else None


def _draw(measured: Sequence[Retention]) -> Figure:
    with_styles = any(retention.shares for retention in measured)
    drawing = Figure(figsize=(style.WIDTH, 0.24 * len(measured) + 1.1), layout="constrained")
    grid = drawing.subplots(1, 3 if with_styles else 2, sharey=True, squeeze=False)[0]
    handles = _styles(grid[0], measured) if with_styles else {}
    all_names = dict.fromkeys(name for retention in measured for name in retention.cells)
    for axes, names, title, label in (
        (grid[-2], (KEEP, EXPLORE), "against the base policy", "share of those it solved, or did not"),
        (grid[-1], tuple(n for n in all_names if "@" in n), "accuracy", "average over test prompts"),
    ):
        handles |= _dots(axes, measured, names)
        axes.set_title(title, loc="left")
        axes.set_xlabel(label)
    labels = [r.label if math.isnan(r.coef) else f"{r.label}, {r.coef:g}" for r in measured]
    labels = [", ".join(filter(None, (text, r.setting))) for text, r in zip(labels, measured, strict=True)]
    grid[0].set_yticks(range(len(measured)), labels)
    grid[0].set_ylim(len(measured) - 0.4, -0.6)
    for axes in grid:
        for row, pair in enumerate(pairwise(measured), start=1):
            if pair[0].strong != pair[1].strong or BASE in (pair[0].label, pair[1].label):
                axes.axhline(row - 0.5, color="#999999", linewidth=0.7)
        axes.set_xlim(-0.02, 1.02)
    legend(drawing, handles, f"lines behind marks: {INTERVAL}")
    return drawing


def _styles(axes: Axes, measured: Sequence[Retention]) -> dict[str, Artist]:
    """Draw a bar of stacked shares of the styles per arm, with the effective number; returns the legend entries."""
    names = sorted({name for retention in measured for name in retention.shares})
    colours = dict(zip(names, STYLE_COLOURS, strict=False))
    for row, retention in enumerate(measured):
        left = 0.0
        for name in names:
            share = retention.shares.get(name, 0.0)
            axes.barh(row, share, left=left, height=0.75, color=colours.get(name, style.BASE))
            left += share
        cell = retention.cells.get(EFFECTIVE)
        if cell is not None and math.isfinite(cell.mean):
            axes.text(0.98, row, f"{cell.mean:.1f}", ha="right", va="center", fontsize=7, color="white")
        else:
            state = (cell or next(iter(retention.cells.values()))).state
            axes.text(0.02, row, state, va="center", fontsize=7, color=style.BASE)
    axes.grid(visible=False)
    axes.set_title("styles of correct answers", loc="left")
    axes.set_xlabel("share; number: effective styles")
    return {name: Patch(color=colours.get(name, style.BASE)) for name in names}


def _dots(axes: Axes, measured: Sequence[Retention], names: Sequence[str]) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    for name in names:
        mark, colour = DOTS.get(name.partition("@")[0], ("x", style.OTHER))
        handles[name] = Line2D([], [], marker=mark, linestyle="", color=colour)
        for row, retention in enumerate(measured):
            cell = retention.cells.get(name)
            if cell is None or not math.isfinite(cell.mean):
                continue
            ends = cell.interval()
            if math.isfinite(ends[0]):
                axes.plot(ends, [row, row], color=lighter(colour, 0.5), linewidth=1.2)
            axes.plot(cell.mean, row, mark, color=colour, markersize=4.5)
    return handles
