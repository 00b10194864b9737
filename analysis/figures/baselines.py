"""The figure of baselines: a row per objective, a panel per column of the table."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.cells import BASE, value
from analysis.report.lines import INTERVAL
from analysis.report.looks import lighter
from analysis.tables.baselines import ENTROPY_NATS, Ranking, rankings

QUESTION = "Which objective trades accuracy against diversity, and how?"


def figure(frames: Frames) -> Figure | None:
    """None unless four families of objectives ran in one setting."""
    all_rankings = rankings(frames)
    return style.with_style(lambda: _draw(frames, all_rankings)) if all_rankings else None


def _draw(frames: Frames, all_rankings: list[Ranking]) -> Figure:
    heights = [0.2 * len(ranking.rows) + 0.6 for ranking in all_rankings]
    drawing = Figure(figsize=(style.WIDTH, sum(heights)), layout="constrained")
    columns = [list(ranking.columns) for ranking in all_rankings]
    grid = drawing.subplots(len(all_rankings), max(map(len, columns)), squeeze=False, height_ratios=heights)
    for row, ranking, names in zip(grid, all_rankings, columns, strict=True):
        for axes, column in zip(row, names, strict=False):
            _panel(axes, frames, ranking, column, labelled=axes is row[0])
        for axes in row[len(names) :]:
            axes.set_visible(False)
    drawing.supxlabel(f"bars: {INTERVAL}", fontsize=7.5)
    return drawing


def _panel(axes: Axes, frames: Frames, ranking: Ranking, column: str, *, labelled: bool) -> None:
    names = [row.label for row in ranking.rows]
    scale = 1.0 if column == ENTROPY_NATS else 100.0
    cells = [value(frames, row, ranking.columns[column]) for row in ranking.rows]
    for y, (name, cell) in enumerate(zip(names, cells, strict=True)):
        if not cell.empty:
            colour, (low, high) = style.BASE if name == BASE else style.COLOURS["js"], cell.interval()
            bar = {"color": lighter(colour, 0.45), "linewidth": 2.2, "solid_capstyle": "butt"}
            axes.plot([scale * low, scale * high], [y, y], **bar)  # nothing where the ends are NaN
            axes.plot(scale * cell.mean, y, "o", color=colour, markersize=4)
    if not cells[0].empty:
        axes.axvline(scale * cells[0].mean, color=style.BASE, linestyle=":", linewidth=1.1)
    axes.set_ylim(len(names) - 0.5, -0.5)
    short = [name if len(name) <= 34 else f"{name[:33]}…" for name in names]
    axes.set_yticks(range(len(names)), short if labelled else [""] * len(names))
    axes.tick_params(axis="y", length=0)
    axes.set_title(column if scale == 1 else f"{column}, %", loc="left", fontsize=8)
    if labelled and ranking.setting.name:
        axes.set_xlabel(ranking.setting.name)
