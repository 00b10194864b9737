"""What several figures share: a metric against a knob, pass@k against k, the looks of lines, legends."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.looks import Look, looks_of
from analysis.scores.ablation import Line, metrics
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, base_cell, cell
from analysis.scores.comparable import Comparable
from analysis.scores.metric import AVERAGE, Kind, Metric
from analysis.scores.selection import ordered

LinesBySetting = Sequence[tuple[Comparable, Sequence[Line]]]

# Line styles of matplotlib; ACROSS: of horizontal lines.
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
ACROSS: tuple[Any, ...] = ((0, (4, 2)), (0, (6, 1.5, 1, 1.5)), (0, (9, 2)))


def reference(index: int) -> dict[str, Any]:
    """Colour and dash of horizontal line number `index`, as matplotlib's keywords: black, brown after the dashes are
    used up. Dotted lines are the base policy's."""
    turn, i = divmod(index, len(ACROSS))
    return {"color": (style.GRPO, style.OTHER)[turn % 2], "linestyle": ACROSS[i]}


def drawn_as(look: Look, *, marked: bool = True) -> dict[str, Any]:
    """A look as matplotlib's keywords."""
    return {"color": look.colour, "marker": look.marker if marked else "", "linestyle": DASHES[look.dash]}


def draw(axes: Axes, x: Sequence[float], cells: Sequence[Cell], look: Look) -> Artist:
    """Draw a line with its interval, in per cent, cut at 0 and at 100; a missing value leaves a gap."""
    mean, ends = [100 * cell.mean for cell in cells], 100 * np.array([cell.interval() for cell in cells])
    axes.fill_between(x, *ends.clip(0, 100).T, color=look.colour, alpha=0.12, linewidth=0)
    return axes.plot(x, mean, markeredgecolor="white", markeredgewidth=0.5, **drawn_as(look))[0]


def references(axes: Axes, frames: Frames, setting: Comparable, metric: Metric) -> dict[str, Artist]:
    """Draw each GRPO arm as a dashed line across with its interval, the base policy dotted; returns the legend entries,
    which name a missing GRPO run."""
    scores = {arm.named(arm.loss): cell(frames, arm, metric, setting.sources) for arm in setting.grpo}
    handles: dict[str, Artist] = {}
    for i, (name, scored) in enumerate((scores or {"grpo": Cell()}).items()):
        if scored.empty:
            handles[f"{name}: {scored.state}"] = Line2D([], [], alpha=0.35, **reference(i))
            continue
        low, high = (100 * end for end in scored.interval())
        if math.isfinite(low):
            axes.axhspan(low, high, color=reference(i)["color"], alpha=0.07, linewidth=0)
        handles[name] = axes.axhline(100 * scored.mean, linewidth=1.2, **reference(i))
    return handles | base_policy(axes, base_cell(frames, setting.arms, metric, setting.sources))


def base_policy(axes: Axes, scored: Cell) -> dict[str, Artist]:
    """Draw the base policy as a dotted line across; returns its legend entry, {} where it has no score."""
    if scored.empty:
        return {}
    return {"base policy": axes.axhline(100 * scored.mean, color=style.BASE, linestyle=":", linewidth=1.4)}


def focus(axes: Axes) -> None:
    """Limit y to the values and half their span above and below; bands may be cut off there."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if not len(values) or values.min() == values.max():
        return
    if axes.get_yscale() == "log":
        margin = (values.max() / values.min()) ** 0.5
        limits = values.min() / margin, values.max() * margin
    else:
        margin = (values.max() - values.min()) / 2
        limits = values.min() - margin, values.max() + margin
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, limits[0]), min(top, limits[1]))


def against_k(frames: Frames, lines_by_setting: LinesBySetting) -> Figure:
    """pass@k against k: a panel per line, a curve per value of its knob, the base policy dotted."""
    panels = [(setting, line) for setting, lines in lines_by_setting for line in lines]
    figure, grid = style.sheet(len(panels), min(2, len(panels)), height=2.9, more=0.3)
    handles: dict[str, Artist] = {}
    for axes, (setting, line) in zip(grid, panels, strict=True):
        handles |= _pass_panel(axes, frames, setting, line)
    legend(figure, handles, f"band: {INTERVAL}")
    return figure


def _pass_panel(axes: Axes, frames: Frames, setting: Comparable, line: Line) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    by_k = {1 if m.kind == Kind.AVG else m.k: m for m in metrics(setting).values()}
    ks = sorted(by_k)
    for value, arm, look in zip(line.values, line.arms, looks_of(line.arms, frames.baseline), strict=True):
        cells = [cell(frames, arm, by_k[k], setting.sources) for k in ks]
        handles[str(value)] = draw(axes, ks, cells, look)
    values = [100 * base_cell(frames, setting.arms, by_k[k], setting.sources).mean for k in ks]
    if any(math.isfinite(v) for v in values):
        handles["base policy"] = axes.plot(ks, values, color=style.BASE, linestyle=":", linewidth=1.4)[0]
    axis_of_k(axes, ks)
    where = "average over benchmarks" if setting.overall == AVERAGE else setting.overall
    axes.set_title(textwrap.fill(setting.titled(f"{line.name}, {where}"), 48), loc="left")
    return handles


def axis_of_k(axes: Axes, ks: Sequence[int]) -> None:
    """The axes of pass@k: 1, 2, 4 ... on a logarithmic one."""
    logarithmic(axes, ks, map(str, ks))
    axes.set(xlabel="k", ylabel="pass@k, %")


def logarithmic(axes: Axes, ticks: Sequence[float], texts: Iterable[str], *, base: int = 2) -> None:
    """Make the x axis logarithmic, with these ticks alone."""
    axes.set_xscale("log", base=base)
    axes.set_xticks(ticks, list(texts))
    axes.minorticks_off()


@dataclass(frozen=True)
class Axis:
    """The axis of a knob: its label, and the base of its logarithmic scale."""

    label: str
    base: int = 2


def against_knob(
    frames: Frames, lines_by_setting: LinesBySetting, axis: Axis, without_knob: Sequence[Arm] = ()
) -> Figure:
    """Each metric against the value of a knob: a line per objective, the base policy dotted.

    without_knob: arms of the same settings that do not have the knob: horizontal dashed lines.
    """
    drawing, panels = style.panels([(setting, setting.shown) for setting, _ in lines_by_setting], height=2.75)
    lines_of = {setting.name: lines for setting, lines in lines_by_setting}
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        across = [arm for arm in without_knob if arm.setting == setting.name]
        handles |= _knob_panel(axes, frames, setting, lines_of[setting.name], str(metric), axis, across)
    legend(drawing, handles, f"band: {INTERVAL}")
    return drawing


def _knob_panel(
    axes: Axes,
    frames: Frames,
    setting: Comparable,
    lines: Sequence[Line],
    metric: str,
    axis: Axis,
    across: Sequence[Arm],
) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    if metric not in metrics(setting):  # pass@1 alone is left out: it is the same number as avg@n
        axes.set_visible(False)
        return handles
    for line, look in zip(lines, looks_of([line.arms[0] for line in lines]), strict=True):
        cells = [cell(frames, arm, metrics(setting)[metric], setting.sources) for arm in line.arms]
        handles[line.name] = draw(axes, [float(v) for v in line.values], cells, look)
    for i, arm in enumerate(across):
        mean = cell(frames, arm, metrics(setting)[metric], setting.sources).mean
        if math.isfinite(mean):
            handles[arm.named(arm.method)] = axes.axhline(100 * mean, linewidth=1.1, **reference(i))
    handles |= base_policy(axes, base_cell(frames, setting.arms, metrics(setting)[metric], setting.sources))
    ticks = sorted({v for line in lines for v in line.values})
    logarithmic(axes, ticks, [f"{v:g}" for v in ticks], base=axis.base)
    axes.set_xlabel(axis.label)
    return handles


MOST_ARMS = 24  # in a figure: more cannot be distinguished; the curves of the page have all


MOST_REMARKS = 3  # on single arms, in the title of a legend


def legible(arms: Sequence[Arm], swept: Mapping[str, Sequence[str]]) -> tuple[list[Arm], str]:
    """(the arms that a figure shows, in order; the remark for its legend where some are left out, else "")."""
    in_order = ordered(arms, swept)
    remark = f"the first {MOST_ARMS} of {len(in_order)} arms" if len(in_order) > MOST_ARMS else ""
    return in_order[:MOST_ARMS], remark


def by_arm(
    frames: Frames,
    rows: Sequence[tuple[Comparable, Sequence[Metric]]],
    draw_arm: Callable[[Axes, Comparable, Metric, Arm, Look], Artist | None],
    *,
    height: float,
    remark: str,
) -> Figure:
    """A panel per setting and metric, in which `draw_arm` draws every arm; its artist stands in the legend. remark: the
    last of those above it."""
    drawing, panels = style.panels(rows, height=height)
    handles: dict[str, Artist] = {}
    remarks: list[str] = []
    for axes, setting, metric in panels:
        shown, which = legible(setting.arms, frames.swept)
        remarks += [r for r in (which, *left_out(shown)) if r and r not in remarks]
        for arm, look in zip(shown, looks_of(shown, frames.baseline), strict=True):
            drawn = draw_arm(axes, setting, metric, arm, look)
            handles |= {arm.short: drawn} if drawn is not None else {}
    legend(drawing, handles, "; ".join(filter(None, [*remarks, remark])))
    return drawing


def left_out(arms: Sequence[Arm]) -> list[str]:
    """The remark for a legend which arms' curves leave runs out, and how these ended; [] where none does."""
    remarks: list[str] = []
    for arm in arms:
        drawn = {run.run_id for run in arm.drawn}
        others = Counter(str(run.state) for run in arm.runs if run.run_id not in drawn)
        if others:
            ended = ", ".join(f"{number} {state}" for state, number in others.items())
            remarks.append(f"{arm.label}: {len(drawn)} of {len(arm.runs)} runs ({ended})")
    return remarks if len(remarks) <= MOST_REMARKS else [f"{len(remarks)} arms: finished runs only"]


INTERVAL = "95 % interval over seeds and problems, as ± in the tables"
BAND = "mean over seeds; band: its 95 % interval (t) over them, from three on"


def legend(drawing: Figure, handles: dict[str, Artist], title: str = "") -> None:
    """Add a legend below, in as many columns as its longest name has room for; each row after the first adds height."""
    columns = max(1, min(7, 112 // (max(map(len, handles), default=1) + 7)))
    titles = textwrap.wrap(title, 125)
    rows = math.ceil(len(handles) / columns) + max(1, len(titles))
    drawing.set_figheight(drawing.get_figheight() + 0.16 * max(0, rows - 2))
    drawing.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=columns,
        title="\n".join(titles) or None,
        title_fontsize=7.5,
    )
