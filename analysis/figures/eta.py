"""The η figure: accuracy and coverage against 1/η, a line per divergence; GRPO and the base policy are horizontal."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.frames.frames import Frames, grouped
from analysis.report import style
from analysis.report.lines import INTERVAL, draw, legend, logarithmic, references
from analysis.report.looks import NUM_DASHES, Look
from analysis.scores.cell import Cell, cell
from analysis.scores.comparable import Comparable, lad_settings
from analysis.scores.labels import inverse
from analysis.scores.metric import Metric

QUESTION = "How do avg@k and pass@k move with 1/η under each divergence?"


def figure(frames: Frames) -> Figure | None:
    """None unless LAD runs have two η to compare."""
    settings = lad_settings(frames, etas=2)
    return style.with_style(lambda: _draw(frames, settings)) if settings else None


def _draw(frames: Frames, settings: list[Comparable]) -> Figure:
    drawing, panels = style.panels([(setting, setting.shown) for setting in settings], height=2.75)
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        handles |= _panel(axes, frames, setting, metric)
    handles = {name: handles[name] for name in sorted(handles, key=lambda n: n == "no result")}
    legend(drawing, handles, f"band: {INTERVAL}")
    return drawing


def _panel(axes: Axes, frames: Frames, setting: Comparable, metric: Metric) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    variants = list(dict.fromkeys(a.named("", tuned=False) for a in setting.lad))
    for name, line in grouped(setting.lad, lambda a: a.named(a.divergence, tuned=False)).items():
        cells = [cell(frames, a, metric, setting.sources) for a in line]
        dash = variants.index(line[0].named("", tuned=False)) % NUM_DASHES
        handles[name] = _line(axes, [1 / a.eta for a in line], cells, line[0].divergence, dash)
        if any(c.empty for c in cells):
            handles["no result"] = Line2D([], [], color=style.BASE, marker="x", linestyle="none")
    handles |= references(axes, frames, setting, metric)
    etas = sorted({a.eta for a in setting.lad}, reverse=True)
    logarithmic(axes, [1 / e for e in etas], map(inverse, etas))
    axes.set_xlabel("1/η")
    return handles


def _line(axes: Axes, x: Sequence[float], cells: Sequence[Cell], divergence: str, dash: int) -> Artist:
    """Draw one divergence with its interval; a cross at the bottom marks an η without a result."""
    colour, marker = style.divergence_look(divergence)
    absent = [a for a, scored in zip(x, cells, strict=True) if scored.empty]
    if absent:  # x in data, y in shares of the axis: the mark has no value
        place = axes.get_xaxis_transform()
        (crosses,) = axes.plot(absent, [0.03] * len(absent), "x", color=colour, transform=place, clip_on=False)
        crosses.set_in_layout(False)
    return draw(axes, x, cells, Look(colour, marker, dash))
