"""The η figure: accuracy and coverage against 1/η, a line per divergence; GRPO and the base policy are horizontal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import DASHES, INTERVAL, legend, reference
from analysis.scores.cell import Cell, base_cell, cell
from analysis.scores.comparable import Comparable, lad_settings
from analysis.scores.labels import inverse
from analysis.scores.metric import Metric
from analysis.tables.eta import label

QUESTION = "How do avg@k and pass@k move with 1/η under each divergence?"


def figure(frames: Frames) -> Figure | None:
    """None unless LAD runs have two η to compare."""
    settings = lad_settings(frames, etas=2)
    return style.with_style(lambda: _draw(frames, settings)) if settings else None


def _draw(frames: Frames, settings: list[Comparable]) -> Figure:
    drawing, panels = style.panels(settings, height=2.75)
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        handles |= _panel(axes, frames, setting, metric)
    handles = {name: handles[name] for name in sorted(handles, key=lambda n: n == "no result")}
    legend(drawing, handles, f"band: {INTERVAL}")
    return drawing


def _panel(axes: Axes, frames: Frames, setting: Comparable, metric: Metric) -> dict[str, Artist]:
    """Draw one metric of one setting; returns its legend entries."""
    handles: dict[str, Artist] = {}
    variants = list(dict.fromkeys(a.variant for a in setting.lad))
    for divergence, variant in dict.fromkeys((a.divergence, a.variant) for a in setting.lad):
        line = [a for a in setting.lad if (a.divergence, a.variant) == (divergence, variant)]
        cells = [cell(frames, a, metric, setting.sources) for a in line]
        name = f"{divergence} ({variant})" if variant else divergence
        dashes = DASHES[variants.index(variant) % len(DASHES)]
        handles[name] = _line(axes, [1 / a.eta for a in line], cells, divergence, dashes)
        if any(not math.isfinite(c.mean) for c in cells):
            handles["no result"] = Line2D([], [], color=style.BASE, marker="x", linestyle="none")
    handles |= _reference(axes, frames, setting, metric)
    etas = sorted({a.eta for a in setting.lad}, reverse=True)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / e for e in etas], [inverse(e) for e in etas])
    axes.minorticks_off()
    axes.set_xlabel("1/η")
    return handles


def _line(axes: Axes, x: Sequence[float], cells: Sequence[Cell], divergence: str, dashes: Any) -> Line2D:
    """Draw one divergence with its interval; a cross at the bottom marks an η without a result."""
    y, low, high = ([100 * c.record()[end] for c in cells] for end in ("mean", "low", "high"))
    colour, marker = style.colour(divergence), style.marker(divergence)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    absent = [a for a, value in zip(x, y, strict=True) if not math.isfinite(value)]
    if absent:  # x in data, y in shares of the axis: the mark has no value
        place = axes.get_xaxis_transform()
        (crosses,) = axes.plot(absent, [0.03] * len(absent), "x", color=colour, transform=place, clip_on=False)
        crosses.set_in_layout(False)
    look = {"color": colour, "marker": marker, "linestyle": dashes}
    return axes.plot(x, y, markeredgecolor="white", markeredgewidth=0.5, **look)[0]


def _reference(axes: Axes, frames: Frames, setting: Comparable, metric: Metric) -> dict[str, Artist]:
    """Draw each GRPO arm as a dashed line across, the base policy dotted; returns the legend entries.

    The legend names a missing GRPO run.
    """
    scores = {label("GRPO", a): cell(frames, a, metric, setting.sources) for a in setting.grpo}
    handles: dict[str, Artist] = {}
    for i, (name, scored) in enumerate((scores or {"GRPO": Cell()}).items()):
        if scored.empty:
            handles[f"{name}: {scored.state}"] = Line2D([], [], alpha=0.35, **reference(i))
            continue
        low, high = (100 * end for end in scored.interval())
        if math.isfinite(low):
            axes.axhspan(low, high, color=reference(i)["color"], alpha=0.07, linewidth=0)
        handles[name] = axes.axhline(100 * scored.mean, linewidth=1.2, **reference(i))
    base = base_cell(frames, setting.arms, metric, setting.sources)
    if math.isfinite(base.mean):
        handles["base policy"] = axes.axhline(100 * base.mean, color=style.BASE, linestyle=":", linewidth=1.4)
    return handles
