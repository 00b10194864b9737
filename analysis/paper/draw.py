"""Draws a figure of a paper from its printed numbers, as lines or bars by series, with ours beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.paper.printed import RAW, FigureLayout, PaperFigure, PrintedCell, part_of, series_of
from analysis.report import style
from analysis.report.grid import OURS
from analysis.report.lines import DASHES, legend
from analysis.report.looks import lighter, numbered
from analysis.report.table import Table

COLUMNS = 3
HATCHES = ("////", "....", "xxxx", "----")  # distinguish several arms of ours beside one printed row
WIDE = 12  # a panel with more bars takes the whole width
CUT = 0.8  # where all bars reach this share of the highest, the axis does not start at zero


@dataclass(frozen=True)
class Mark:
    """A printed number or one of ours, in the unit of the paper.

    low, high: the ends of its interval, NaN without one. across: drawn as a line over all x.
    """

    panel: str
    series: str
    x: str
    value: float
    low: float = math.nan
    high: float = math.nan
    ours: bool = False
    across: bool = False


def figure(paper_figure: PaperFigure, table: Table) -> Figure:
    """Draw a figure whose numbers are printed. table: their table, with our rows."""
    layout = paper_figure.layout
    assert layout is not None
    return style.with_style(lambda: _draw(paper_figure, layout, marks(layout, table)))


def has_ours(paper_figure: PaperFigure, table: Table) -> bool:
    """Whether some run of ours corresponds to a row that the figure shows."""
    return paper_figure.layout is not None and any(mark.ours for mark in marks(paper_figure.layout, table))


def marks(layout: FigureLayout, table: Table) -> list[Mark]:
    """What is drawn: for each printed cell its number, then ours of the same cell. table: with our rows."""
    ours: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in table.records:
        line, _, label = str(record["row"]).partition(OURS)
        key = (record["block"], line, record["column"])
        ours.setdefault(key, []).append({**record, "label": f"{OURS}{label}"})
    all_marks: list[Mark] = []
    for cell in layout.chosen():
        all_marks.append(_mark(cell, layout, cell.number or 0.0))
        for record in ours.get((cell.panel, cell.line, cell.head), ()):
            scale = table.format_of(record["metric"], record["column"]).scale
            mean, low, high = (record[end] * scale for end in ("mean", "low", "high"))
            if math.isfinite(mean):
                all_marks.append(_mark(cell, layout, mean, low, high, label=record["label"]))
    return all_marks


def _mark(
    cell: PrintedCell,
    layout: FigureLayout,
    value: float,
    low: float = math.nan,
    high: float = math.nan,
    *,
    label: str = "",
) -> Mark:
    position = part_of(cell, layout.panel), f"{series_of(cell, layout)}{label}", part_of(cell, layout.x)
    return Mark(*position, value, low, high, ours=bool(label), across=cell.row in layout.across)


# --- drawing


def _draw(paper_figure: PaperFigure, layout: FigureLayout, marks: Sequence[Mark]) -> Figure:
    panels = list(dict.fromkeys(mark.panel for mark in marks))
    bars = max(sum(mark.panel == panel for mark in marks) for panel in panels)
    columns = 1 if layout.kind == "bars" and bars > WIDE else min(COLUMNS, len(panels))
    # Left out of the legend: with one arm of ours per row, its series look like the printed ones.
    hidden = {mark.series for mark in marks if mark.ours and mark.series.endswith(OURS)}
    drawing, grid = style.sheet(len(panels), columns, height=2.1, more=0.7)
    drawing.suptitle(f"{paper_figure.paper}, {paper_figure.title}: {paper_figure.says}", fontsize=9, x=0.01, ha="left")
    colours = _colours(marks)
    handles: dict[str, Artist] = {}
    for axes, panel in zip(grid, panels, strict=True):
        panel_marks = [mark for mark in marks if mark.panel == panel]
        handles |= PANELS[layout.kind](axes, panel_marks, layout, colours)
        axes.set_title(panel, loc="left")
        axes.set_ylabel(_y_label(layout, panel))
    in_legend = {name: handle for name, handle in handles.items() if name not in hidden}
    ours = "; ours dashed or hatched" if any(mark.ours for mark in marks) else ""
    legend(drawing, in_legend, f"as printed, {layout.printed.title}{ours}")
    return drawing


def _colours(marks: Sequence[Mark]) -> dict[str, Any]:
    """(colour, marker) of every series; ours has those of the printed series."""
    names = list(dict.fromkeys(mark.series.partition(OURS)[0] for mark in marks))
    of_names = {name: (numbered(i).colour, numbered(i).marker) for i, name in enumerate(names)}
    return {mark.series: of_names[mark.series.partition(OURS)[0]] for mark in marks}


def _place_beside(series: str, names: Sequence[str]) -> int:
    """The place of a series of ours among those beside the same printed series: 0, 1, …"""
    return [name for name in names if name.startswith(f"{series.partition(OURS)[0]}{OURS}")].index(series)


def _y_label(layout: FigureLayout, panel: str) -> str:
    """The metric of a panel, unless the panel is named after it, and the unit."""
    metrics = list(dict.fromkeys(cell.metric for cell in layout.chosen() if part_of(cell, layout.panel) == panel))
    metric = metrics[0] if len(metrics) == 1 and metrics[0] != panel else ""
    unit = "" if metrics[0] in RAW else "%"
    return ", ".join(part for part in (metric, unit) if part)


def _lines(axes: Axes, marks: Sequence[Mark], layout: FigureLayout, colours: Mapping[str, Any]) -> dict[str, Artist]:
    """Draw a line per series over numeric x, or over all x where a mark is `across`; returns the legend entries."""
    handles: dict[str, Artist] = {}
    names = list(dict.fromkeys(mark.series for mark in marks))
    ticks = {number_of(mark.x): mark.x for mark in marks if not mark.across}
    for name in names:
        series = sorted((mark for mark in marks if mark.series == name), key=lambda mark: number_of(mark.x))
        colour, marker = colours[name]
        dashes = DASHES[1 + _place_beside(name, names) % (len(DASHES) - 1)] if series[0].ours else "-"
        if series[0].across:
            handles[name] = axes.axhline(series[0].value, color=style.GRPO, linestyle=dashes, linewidth=1.1)
            continue
        x, y = [number_of(mark.x) for mark in series], [mark.value for mark in series]
        face = "white" if series[0].ours else colour
        handles[name] = axes.plot(x, y, color=colour, marker=marker, markerfacecolor=face, linestyle=dashes)[0]
        axes.fill_between(x, [m.low for m in series], [m.high for m in series], color=colour, alpha=0.12, linewidth=0)
    if min(ticks) > 0 and max(ticks) >= 4 * min(ticks):
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_xlabel(layout.x)
    return handles


def _bars(axes: Axes, marks: Sequence[Mark], layout: FigureLayout, colours: Mapping[str, Any]) -> dict[str, Artist]:
    """Draw bars grouped by x, one per series; ours are hatched and have their interval. Returns the legend entries."""
    handles: dict[str, Artist] = {}
    positions, names = (list(dict.fromkeys(getattr(mark, part) for mark in marks)) for part in ("x", "series"))
    width = 0.84 / len(names)
    family = {x: name for name, group in layout.means.items() for x in group}
    for mark in marks:
        position = positions.index(mark.x) + (names.index(mark.series) - (len(names) - 1) / 2) * width
        colour = style.FAMILY[family[mark.x]] if family else colours[mark.series][0]
        face = lighter(colour, 0.75 if mark.ours else 0.2)
        hatch = HATCHES[_place_beside(mark.series, names) % len(HATCHES)] if mark.ours else None
        drawn = axes.bar(
            position, mark.value, width=0.92 * width, color=[face], edgecolor=colour, linewidth=0.6, hatch=hatch
        )
        if len(names) > 1:
            handles[mark.series] = drawn.patches[0]
        if math.isfinite(mark.low):
            ends = [[mark.value - mark.low], [mark.high - mark.value]]
            axes.errorbar(position, mark.value, yerr=ends, color="#222222", linewidth=0.9, capsize=2)
    handles |= _means(axes, marks, positions, layout)
    axes.set_xticks(range(len(positions)), positions)
    axes.set_xlim(-0.6, len(positions) - 0.4)
    axes.grid(visible=False, axis="x")
    _cut_axis(axes, [mark.value for mark in marks])
    return handles


def _means(axes: Axes, marks: Sequence[Mark], positions: Sequence[str], layout: FigureLayout) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    for name, group in layout.means.items():
        values = [mark.value for mark in marks if mark.x in group and not mark.ours]
        spots = [positions.index(x) for x in group if x in positions]
        if values:
            ends = [min(spots) - 0.45, max(spots) + 0.45]
            height = [float(np.mean(values))] * 2
            dashed = axes.plot(ends, height, color=style.FAMILY[name], linestyle=(0, (3, 1.5)), linewidth=1.4)
            handles[f"mean of {name} divergences"] = dashed[0]
    return handles


def _cut_axis(axes: Axes, values: Sequence[float]) -> None:
    """Where all bars are high, start the y axis just below them, so that differences are visible, as papers do."""
    low, high = min(values), max(values)
    if low > CUT * high:
        axes.set_ylim(bottom=max(0.0, low - 1.5 * (high - low)))


PANELS = {"lines": _lines, "bars": _bars}


def number_of(text: str) -> float:
    """The number in a text: 0.25 for 1/4, 8 for pass@8; NaN where there is none."""
    try:
        return float(Fraction(text.rpartition("@")[2]))
    except ValueError:
        return math.nan
