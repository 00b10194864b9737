"""The η figure: accuracy and coverage against 1/η, a line per divergence, GRPO and the base policy beside."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from analysis.arms import Arm, arms, inverse, settings
from analysis.cells import AVERAGE, Cell, Metric, benchmarks, score, score_base
from analysis.load import Frames
from analysis.table import shown_metrics

QUESTION = "How do avg@k and pass@k move with 1/η under each divergence?"


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
    drawing = Figure(figsize=(style.WIDTH, 2.75 * len(named) + 0.35), layout="constrained")
    panels = drawing.subplots(len(named), len(metrics), squeeze=False)
    column = AVERAGE if len(sources) > 1 else sources[0]
    handles: dict[str, object] = {}
    for row, setting in zip(panels, named, strict=True):
        here = [a for a in found if a.setting == setting]
        for axes, metric in zip(row, metrics, strict=True):
            handles |= _panel(axes, frames, here, sources, metric, column)
            axes.set_title(f"{metric}" + (f"  ({setting})" if setting else ""), loc="left")
            axes.set_ylabel(f"{column if column != AVERAGE else 'average over benchmarks'}, %")
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6))
    return drawing


def _panel(
    axes: Axes, frames: Frames, here: list[Arm], sources: list[str], metric: Metric, column: str
) -> dict[str, object]:
    """Draw one metric of one setting; returns its legend entries."""
    key = (metric, column)
    lad = [a for a in here if a.loss == "lad" and a.eta > 0]
    handles: dict[str, object] = {}
    for divergence, variant in dict.fromkeys((a.divergence, a.variant) for a in lad):
        line = sorted((a for a in lad if (a.divergence, a.variant) == (divergence, variant)), key=lambda a: -a.eta)
        cells = [score(frames, a, sources, [metric])[key] for a in line]
        name = f"{divergence} ({variant})" if variant else divergence
        handles[name] = _line(axes, [1 / a.eta for a in line], cells, divergence)
        if any(not math.isfinite(c.mean) for c in cells):
            handles["no result"] = Line2D([], [], color=style.BASE, marker="x", linestyle="none")
    handles |= _reference(axes, frames, here, sources, key)
    etas = sorted({a.eta for a in lad}, reverse=True)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / e for e in etas], [inverse(e) for e in etas])
    axes.minorticks_off()
    axes.set_xlabel("1/η")
    return handles


def _line(axes: Axes, x: Sequence[float], cells: Sequence[Cell], divergence: str) -> Line2D:
    y, low, high = ([100 * c.record()[end] for c in cells] for end in ("mean", "low", "high"))
    colour, marker = style.colour(divergence), style.marker(divergence)
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    absent = [a for a, value in zip(x, y, strict=True) if not math.isfinite(value)]
    place = axes.get_xaxis_transform()  # x in data, y in shares of the axis: where a value is missing, not what it is
    axes.plot(absent, [0.03] * len(absent), "x", color=colour, transform=place, clip_on=False)
    return axes.plot(x, y, color=colour, marker=marker, markeredgecolor="white", markeredgewidth=0.5)[0]


def _reference(
    axes: Axes, frames: Frames, here: list[Arm], sources: list[str], key: tuple[Metric, str]
) -> dict[str, object]:
    """GRPO dashed, base policy dotted. A missing GRPO run is named in the legend."""
    grpo = [a for a in here if a.loss == "grpo"]
    scores = {(f"GRPO ({a.variant})" if a.variant else "GRPO"): score(frames, a, sources, [key[0]])[key] for a in grpo}
    handles: dict[str, object] = {}
    for name, cell in (scores or {"GRPO": Cell()}).items():
        if not math.isfinite(cell.mean):
            handles[f"{name}: {cell.state}"] = Line2D([], [], color=style.GRPO, linestyle=(0, (4, 2)), alpha=0.35)
            continue
        low, high = (100 * cell.record()[end] for end in ("low", "high"))
        if math.isfinite(low):
            axes.axhspan(low, high, color=style.GRPO, alpha=0.07, linewidth=0)
        handles[name] = axes.axhline(100 * cell.mean, color=style.GRPO, linestyle=(0, (4, 2)), linewidth=1.2)
    base = score_base(frames, here, sources, [key[0]])[key]
    if math.isfinite(base.mean):
        handles["base policy"] = axes.axhline(100 * base.mean, color=style.BASE, linestyle=":", linewidth=1.4)
    return handles
