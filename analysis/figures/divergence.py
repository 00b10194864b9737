"""The divergence figure: a bar per divergence, strict and weak families coloured, their means dashed."""

import math

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.cells import MetricColumn, Row, value
from analysis.report.lines import INTERVAL, legend, references
from analysis.report.looks import lighter
from analysis.scores.cell import Cell, cell
from analysis.scores.comparable import Comparable, lad_settings
from analysis.scores.labels import inverse
from analysis.scores.metric import Metric
from analysis.tables.divergence import FAMILIES, Summary, summarise

QUESTION = "Do strict divergences end above weak ones?"


def figure(frames: Frames) -> Figure | None:
    """None unless LAD ran under two divergences."""
    settings = [setting for setting in lad_settings(frames) if len({arm.divergence for arm in setting.lad}) > 1]
    return style.with_style(lambda: _draw(frames, settings)) if settings else None


def _draw(frames: Frames, settings: list[Comparable]) -> Figure:
    drawing, panels = style.panels([(setting, setting.shown) for setting in settings], height=2.7)
    summaries = {setting.name: summarise(frames, setting) for setting in settings}
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        summary = summaries[setting.name]
        handles |= _panel(axes, frames, setting, metric, summary)
        handles |= references(axes, frames, setting, metric)
        axes.set_xlabel(_over(summary))
    legend(drawing, handles, f"whiskers, band of grpo: {INTERVAL}")
    return drawing


def _over(summary: Summary) -> str:
    if not summary.etas:
        return "best 1/η of each"
    listed = ", ".join(inverse(e) for e in summary.etas)
    return f"mean over 1/η = {listed}" if len(summary.etas) > 1 else f"1/η = {listed}"


def _panel(axes: Axes, frames: Frames, setting: Comparable, metric: Metric, summary: Summary) -> dict[str, Artist]:
    column = MetricColumn(metric, setting.sources, setting.overall)
    shown = {g.name: summary.over(g) if summary.etas else (g.best or g.arms[0],) for g in summary.groups}
    handles: dict[str, Artist] = {}
    for x, group in enumerate(summary.groups):
        colour, _ = style.divergence_look(group.arms[0].divergence)
        _bar(axes, x, value(frames, Row(group.name, shown[group.name]), column), colour)
        if summary.etas and len(group.arms) > 1 and group.best is not None:
            best = 100 * cell(frames, group.best, metric, setting.sources).mean
            (mark,) = axes.plot(x + 0.2, best, "D", color="white", markeredgecolor=style.GRPO, markersize=4, zorder=5)
            handles[f"best η, chosen on {'the validation split' if summary.validated else 'these samples'}"] = mark
    for family in FAMILIES:
        spots = [x for x, group in enumerate(summary.groups) if group.family == family]
        mean = value(frames, Row(family, groups=tuple(shown[g.name] for g in summary.family(family))), column)
        if spots and not mean.empty:
            ends = [spots[0] - 0.45, spots[-1] + 0.45]
            (line,) = axes.plot(ends, [100 * mean.mean] * 2, color=style.FAMILY[family], linestyle=(0, (3, 1.5)))
            handles[f"mean of the {family} ones"] = line
    axes.set_xticks(range(len(summary.groups)), [group.name for group in summary.groups])
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(summary.groups) - 0.4)
    return handles


def _bar(axes: Axes, x: int, scored: Cell, colour: str) -> None:
    """Draw a bar with its interval; without a result, the reason in its place."""
    if scored.empty:
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "rotation": 90}
        axes.text(x, 0.04, scored.state, color=style.BASE, fontsize=7.5, **place)
        return
    low, high = (100 * end for end in scored.interval())
    mean = 100 * scored.mean
    axes.bar(x, mean, width=0.7, color=lighter(colour, 0.35), edgecolor=colour, linewidth=0.8)
    if math.isfinite(low):
        axes.errorbar(x, mean, yerr=[[mean - low], [high - mean]], color="#222222", linewidth=1.1, capsize=2.5)
