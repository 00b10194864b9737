"""The divergence figure: a bar per divergence, strict and weak families coloured, their means dashed."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import style
from analysis.arms import Arm, arms, inverse, settings
from analysis.cells import AVERAGE, Cell, Metric, benchmarks, score, score_base
from analysis.load import Frames
from analysis.table import shown_metrics
from analysis.tables.divergence import FAMILIES, Summary, summarise

QUESTION = "Do strict divergences end above weak ones?"


def figure(frames: Frames) -> Figure | None:
    """None if no LAD run has an η."""
    found = arms(frames.runs)
    lad = [a for a in found if a.loss == "lad" and a.eta > 0]
    sources, metrics = benchmarks(frames, frames.runs["run_id"])
    if not lad or not metrics:
        return None
    return style.drawn(lambda: _draw(frames, found, sources, shown_metrics(metrics)))


def _draw(frames: Frames, found: list[Arm], sources: list[str], metrics: list[Metric]) -> Figure:
    named = settings(a for a in found if a.loss == "lad" and a.eta > 0)
    drawing = Figure(figsize=(style.WIDTH, 2.7 * len(named) + 0.35), layout="constrained")
    panels = drawing.subplots(len(named), len(metrics), squeeze=False)
    column = AVERAGE if len(sources) > 1 else sources[0]
    handles: dict[str, object] = {}
    for row, setting in zip(panels, named, strict=True):
        here = [a for a in found if a.setting == setting]
        summary = summarise(frames, [a for a in here if a.loss == "lad" and a.eta > 0], sources, metrics)
        over = f"mean over 1/η = {', '.join(inverse(e) for e in summary.etas)}" if summary.etas else "best 1/η of each"
        for axes, metric in zip(row, metrics, strict=True):
            handles |= _panel(axes, summary, (metric, column))
            handles |= _reference(axes, frames, here, sources, (metric, column))
            axes.set_title("  ".join(x for x in (str(metric), f"({setting})" if setting else "") if x), loc="left")
            axes.set_ylabel(f"{column if column != AVERAGE else 'average over benchmarks'}, %")
            axes.set_xlabel(over)
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 7))
    return drawing


def _panel(axes: Axes, summary: Summary, key: tuple[Metric, str]) -> dict[str, object]:
    """Bars of the mean over η (of the best η if none is shared), family means, and the best η as a mark."""
    which = "over" if summary.etas else "best"
    handles: dict[str, object] = {}
    values: list[float] = []
    for x, row in enumerate(summary.rows):
        cell = getattr(row, which)[key]
        colour = style.FAMILY[row.family]
        values += _bar(axes, x, cell, colour)
        handles[f"{row.family or 'other'} divergences"] = Patch(color=style.lighter(colour, 0.35))
        if summary.etas and len(row.etas) > 1 and math.isfinite(row.best[key].mean):
            best = 100 * row.best[key].mean
            (mark,) = axes.plot(x, best, "D", color="white", markeredgecolor=style.GRPO, markersize=4, zorder=5)
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
        axes.text(x, 0.04, cell.state, rotation=90, ha="center", va="bottom", color=style.BASE,
                  transform=axes.get_xaxis_transform(), fontsize=7.5)  # fmt: skip
        return []
    low, high = (100 * cell.record()[end] for end in ("low", "high"))
    mean = 100 * cell.mean
    axes.bar(x, mean, width=0.7, color=style.lighter(colour, 0.35), edgecolor=colour, linewidth=0.8)
    if math.isfinite(low):
        axes.errorbar(x, mean, yerr=[[mean - low], [high - mean]], color="#222222", linewidth=1.1, capsize=2.5)
    return [mean]


def _reference(
    axes: Axes, frames: Frames, here: list[Arm], sources: list[str], key: tuple[Metric, str]
) -> dict[str, object]:
    handles: dict[str, object] = {}
    for arm in (a for a in here if a.loss == "grpo"):
        cell = score(frames, arm, sources, [key[0]])[key]
        if math.isfinite(cell.mean):
            name = f"GRPO ({arm.variant})" if arm.variant else "GRPO"
            handles[name] = axes.axhline(100 * cell.mean, color=style.GRPO, linestyle=(0, (4, 2)), linewidth=1.1)
    if not handles:
        handles["GRPO: missing"] = Line2D([], [], color=style.GRPO, linestyle=(0, (4, 2)), alpha=0.35)
    base = score_base(frames, here, sources, [key[0]])[key]
    if math.isfinite(base.mean):
        handles["base policy"] = axes.axhline(100 * base.mean, color=style.BASE, linestyle=":", linewidth=1.3)
    return handles
