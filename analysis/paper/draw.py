"""Draws a figure of a paper from its printed numbers, in lines or bars by series, with ours beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.paper.figures import Layout, Pictured, part_of, series_of
from analysis.paper.printed import RAW, Place
from analysis.report import style
from analysis.report.grid import OURS
from analysis.report.lines import DASHES, legend, look
from analysis.report.table import Table

COLUMNS = 3
HATCHES = ("////", "....", "xxxx", "----")  # of several arms of ours beside one printed row
WIDE = 12  # bars of a panel that needs the whole width
CUT = 0.8  # bars that all reach this share of the highest do not start at zero


@dataclass(frozen=True)
class Mark:
    """A printed number or one of ours, in the unit of the paper. low, high: of its interval, NaN without one."""

    panel: str
    series: str
    x: str
    value: float
    low: float = math.nan
    high: float = math.nan
    ours: bool = False
    across: bool = False


def figure(pictured: Pictured, shown: Table) -> Figure:
    """Of a figure whose numbers are printed. shown: their table, with ours."""
    return style.drawn(lambda: _draw(pictured, marks(pictured, shown)))


def has_ours(pictured: Pictured, shown: Table) -> bool:
    """Whether some run corresponds to a row that it shows."""
    return pictured.printed is not None and any(mark.ours for mark in marks(pictured, shown))


def marks(pictured: Pictured, shown: Table) -> list[Mark]:
    """What is drawn: of every printed cell its number, then ours of the same cell. shown: the table with ours."""
    assert pictured.layout is not None
    assert pictured.printed is not None
    ours: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in shown.records:
        line, _, label = str(record["row"]).partition(OURS)
        key = (record["block"], line, record["column"])
        ours.setdefault(key, []).append({**record, "label": f"{OURS}{label}"})
    found: list[Mark] = []
    for cell in pictured.layout.chosen(pictured.printed):
        found.append(_mark(cell, pictured.layout, cell.number or 0.0))
        for record in ours.get((cell.panel, cell.line, cell.head), ()):
            scale = shown.format_of(record["metric"], record["column"]).scale
            mean, low, high = (record[end] * scale for end in ("mean", "low", "high"))
            if math.isfinite(mean):
                found.append(_mark(cell, pictured.layout, mean, low, high, label=record["label"]))
    return found


def _mark(
    cell: Place, layout: Layout, value: float, low: float = math.nan, high: float = math.nan, *, label: str = ""
) -> Mark:
    place = part_of(cell, layout.panel), f"{series_of(cell, layout)}{label}", part_of(cell, layout.x)
    return Mark(*place, value, low, high, ours=bool(label), across=cell.row in layout.across)


# --- drawing


def _draw(pictured: Pictured, found: Sequence[Mark]) -> Figure:
    assert pictured.layout is not None
    assert pictured.printed is not None
    panels = list(dict.fromkeys(mark.panel for mark in found))
    bars = max(sum(mark.panel == panel for mark in found) for panel in panels)
    columns = 1 if pictured.layout.kind == "bars" and bars > WIDE else min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    hidden = {m.series for m in found if m.ours and m.series.endswith(OURS)}  # they look like the printed ones
    drawing = Figure(figsize=(style.WIDTH, 2.1 * rows + 0.7), layout="constrained")
    drawing.suptitle(f"{pictured.paper}, {pictured.title}: {pictured.says}", fontsize=9, x=0.01, ha="left")
    grid = drawing.subplots(rows, columns, squeeze=False).ravel()
    colours = _colours(found)
    handles: dict[str, Artist] = {}
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid, panels, strict=False):
        here = [mark for mark in found if mark.panel == panel]
        handles |= PANELS[pictured.layout.kind](axes, here, pictured.layout, colours)
        axes.set_title(panel, loc="left")
        axes.set_ylabel(_unit(pictured, panel))
    shown = {name: handle for name, handle in handles.items() if name not in hidden}
    ours = "; ours dashed or hatched" if any(mark.ours for mark in found) else ""
    legend(drawing, shown, f"as printed, {pictured.printed.title}{ours}")
    return drawing


def _colours(found: Sequence[Mark]) -> dict[str, Any]:
    """Of every series; of ours that of the printed one."""
    names = list(dict.fromkeys(mark.series.partition(OURS)[0] for mark in found))
    return {mark.series: look(names.index(mark.series.partition(OURS)[0])) for mark in found}


def _unit(pictured: Pictured, panel: str) -> str:
    assert pictured.layout is not None
    assert pictured.printed is not None
    own = [c for c in pictured.layout.chosen(pictured.printed) if part_of(c, pictured.layout.panel) == panel]
    metrics = list(dict.fromkeys(c.metric for c in own))
    unit = "" if metrics[0] in RAW else "%"
    return ", ".join(filter(None, (metrics[0] if len(metrics) == 1 and metrics[0] != panel else "", unit)))


def _lines(axes: Axes, found: Sequence[Mark], layout: Layout, colours: Mapping[str, Any]) -> dict[str, Artist]:
    """A line for each series over numbers; `across` as a line over all of them."""
    handles: dict[str, Artist] = {}
    names = list(dict.fromkeys(mark.series for mark in found))
    ticks = {number_of(mark.x): mark.x for mark in found if not mark.across}
    for name in names:
        own = sorted((mark for mark in found if mark.series == name), key=lambda mark: number_of(mark.x))
        colour, marker = colours[name]
        beside = [each for each in names if each.startswith(f"{name.partition(OURS)[0]}{OURS}")]
        dashes = DASHES[1 + beside.index(name) % (len(DASHES) - 1)] if own[0].ours else "-"
        if own[0].across:
            handles[name] = axes.axhline(own[0].value, color=style.GRPO, linestyle=dashes, linewidth=1.1)
            continue
        x, y = [number_of(mark.x) for mark in own], [mark.value for mark in own]
        face = "white" if own[0].ours else colour
        handles[name] = axes.plot(x, y, color=colour, marker=marker, markerfacecolor=face, linestyle=dashes)[0]
        axes.fill_between(x, [m.low for m in own], [m.high for m in own], color=colour, alpha=0.12, linewidth=0)
    if min(ticks) > 0 and max(ticks) >= 4 * min(ticks):
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_xlabel(layout.x)
    return handles


def _bars(axes: Axes, found: Sequence[Mark], layout: Layout, colours: Mapping[str, Any]) -> dict[str, Artist]:
    """Grouped by x, a bar for each series in a group; ours hatched, with its interval."""
    handles: dict[str, Artist] = {}
    places, names = (list(dict.fromkeys(getattr(mark, part) for mark in found)) for part in ("x", "series"))
    width = 0.84 / len(names)
    family = {x: name for name, group in layout.means.items() for x in group}
    for mark in found:
        at = places.index(mark.x) + (names.index(mark.series) - (len(names) - 1) / 2) * width
        colour = style.FAMILY[family[mark.x]] if family else colours[mark.series][0]
        face = style.lighter(colour, 0.75 if mark.ours else 0.2)
        beside = [name for name in names if name.startswith(f"{mark.series.partition(OURS)[0]}{OURS}")]
        hatch = HATCHES[beside.index(mark.series) % len(HATCHES)] if mark.ours else None
        drawn = axes.bar(at, mark.value, width=0.92 * width, color=[face], edgecolor=colour, linewidth=0.6, hatch=hatch)
        if len(names) > 1:
            handles[mark.series] = drawn.patches[0]
        if math.isfinite(mark.low):
            ends = [[mark.value - mark.low], [mark.high - mark.value]]
            axes.errorbar(at, mark.value, yerr=ends, color="#222222", linewidth=0.9, capsize=2)
    handles |= _means(axes, found, places, layout)
    axes.set_xticks(range(len(places)), places)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.grid(visible=False, axis="x")
    _from_below(axes, [mark.value for mark in found])
    return handles


def _means(axes: Axes, found: Sequence[Mark], places: Sequence[str], layout: Layout) -> dict[str, Artist]:
    """Of the printed numbers of each group of x."""
    handles: dict[str, Artist] = {}
    for name, group in layout.means.items():
        own = [mark.value for mark in found if mark.x in group and not mark.ours]
        spots = [places.index(x) for x in group if x in places]
        if own:
            ends = [min(spots) - 0.45, max(spots) + 0.45]
            height = [float(np.mean(own))] * 2
            dashed = axes.plot(ends, height, color=style.FAMILY[name], linestyle=(0, (3, 1.5)), linewidth=1.4)
            handles[f"mean of {name} divergences"] = dashed[0]
    return handles


def _from_below(axes: Axes, values: Sequence[float]) -> None:
    """Bars that are all high start where their differences are seen, as papers draw them; the axis says where."""
    low, high = min(values), max(values)
    if low > CUT * high:
        axes.set_ylim(bottom=max(0.0, low - 1.5 * (high - low)))


PANELS = {"lines": _lines, "bars": _bars}


def number_of(text: str) -> float:
    """1/4 as 0.25, pass@8 as 8; NaN of no number."""
    try:
        return float(Fraction(text.rpartition("@")[2]))
    except ValueError:
        return math.nan
