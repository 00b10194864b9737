"""The divergence figure: a bar per divergence, strict and weak families coloured, their means dashed."""

from __future__ import annotations

import math

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.frames.load import Frames
from analysis.report import style
from analysis.scores.arms import inverse
from analysis.scores.cells import Cell, Metric, score, score_base
from analysis.scores.setting import Setting, comparisons
from analysis.tables.divergence import FAMILIES, Summary, summarise
from analysis.tables.eta import label

QUESTION = "Do strict divergences end above weak ones?"


def figure(frames: Frames) -> Figure | None:
    """None if no LAD run has an η."""
    found = comparisons(frames)
    return style.drawn(lambda: _draw(frames, found)) if found else None


def _draw(frames: Frames, found: list[Setting]) -> Figure:
    drawing, panels = style.panels(found, height=2.7)
    summaries = {setting.name: summarise(frames, setting) for setting in found}
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        summary = summaries[setting.name]
        handles |= _panel(axes, summary, (metric, setting.overall))
        handles |= _reference(axes, frames, setting, metric)
        axes.set_xlabel(_over(summary))
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 7))
    return drawing


def _over(summary: Summary) -> str:
    """What the bars show, in words."""
    if not summary.etas:
        return "best 1/η of each"
    listed = ", ".join(inverse(e) for e in summary.etas)
    return f"mean over 1/η = {listed}" if len(summary.etas) > 1 else f"1/η = {listed}"


def _panel(axes: Axes, summary: Summary, key: tuple[Metric, str]) -> dict[str, Artist]:
    """Bars of the mean over η (of the best η if none is shared), family means, and the best η as a mark."""
    which = "over" if summary.etas else "best"
    handles: dict[str, Artist] = {}
    values: list[float] = []
    for x, row in enumerate(summary.rows):
        cell = getattr(row, which)[key]
        colour = style.FAMILY[row.family]
        values += _bar(axes, x, cell, colour)
        handles[f"{row.family or 'other'} divergences"] = Patch(color=style.lighter(colour, 0.35))
        if summary.etas and len(row.etas) > 1 and math.isfinite(row.best[key].mean):
            best = 100 * row.best[key].mean
            (mark,) = axes.plot(x + 0.2, best, "D", color="white", markeredgecolor=style.GRPO, markersize=4, zorder=5)
            handles["best η"] = mark
            values.append(best)
    for family in FAMILIES:
        spots = [x for x, row in enumerate(summary.rows) if row.family == family]
        mean = next((s[key] for n, s in summary.families(which).items() if n.startswith(family)), Cell())
        if spots and math.isfinite(mean.mean):
            ends = [spots[0] - 0.45, spots[-1] + 0.45]
            axes.plot(ends, [100 * mean.mean] * 2, color=style.FAMILY[family], linestyle=(0, (3, 1.5)), linewidth=1.5)
            handles["family mean"] = Line2D([], [], color=style.BASE, linestyle=(0, (3, 1.5)), linewidth=1.5)
    axes.set_xticks(range(len(summary.rows)), [row.name for row in summary.rows])
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(summary.rows) - 0.4)
    return handles


def _bar(axes: Axes, x: int, cell: Cell, colour: str) -> list[float]:
    """One bar with its interval; where there is no result, the reason stands in its place."""
    if not math.isfinite(cell.mean):
        axes.text(
            x,
            0.04,
            cell.state,
            rotation=90,
            ha="center",
            va="bottom",
            color=style.BASE,
            transform=axes.get_xaxis_transform(),
            fontsize=7.5,
        )
        return []
    low, high = (100 * cell.record()[end] for end in ("low", "high"))
    mean = 100 * cell.mean
    axes.bar(x, mean, width=0.7, color=style.lighter(colour, 0.35), edgecolor=colour, linewidth=0.8)
    if math.isfinite(low):
        axes.errorbar(x, mean, yerr=[[mean - low], [high - mean]], color="#222222", linewidth=1.1, capsize=2.5)
    return [mean]


def _reference(axes: Axes, frames: Frames, setting: Setting, metric: Metric) -> dict[str, Artist]:
    """GRPO dashed, base policy dotted, as in the η figure."""
    key = (metric, setting.overall)
    handles: dict[str, Artist] = {}
    for arm in setting.grpo:
        cell = score(frames, arm, setting.sources, [metric])[key]
        if math.isfinite(cell.mean):
            line = axes.axhline(100 * cell.mean, color=style.GRPO, linestyle=(0, (4, 2)), linewidth=1.1)
            handles[label("GRPO", arm)] = line
    if not handles:
        handles["GRPO: missing"] = Line2D([], [], color=style.GRPO, linestyle=(0, (4, 2)), alpha=0.35)
    base = score_base(frames, setting.arms, setting.sources, [metric])[key]
    if math.isfinite(base.mean):
        handles["base policy"] = axes.axhline(100 * base.mean, color=style.BASE, linestyle=":", linewidth=1.3)
    return handles
