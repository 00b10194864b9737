"""Lines that several figures draw: a metric against a knob, and pass@k against k."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.scores.ablation import Line, base, metrics, overall
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell
from analysis.scores.comparable import Comparable
from analysis.scores.metric import AVERAGE, Kind
from analysis.scores.selection import ordered

# Okabe and Ito (2008); markers tell lines apart without colour.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#767676")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
KNOWN = {"grpo": (style.GRPO, "s"), "maxrl": ("#0072B2", "o"), "rloo": ("#E69F00", "^"), "pacs": ("#009E73", "D")}


def look(index: int) -> tuple[str, str]:
    """(colour, marker)."""
    return CYCLE[index % len(CYCLE)], MARKERS[index % len(MARKERS)]


DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
ACROSS: tuple[Any, ...] = ((0, (4, 2)), (0, (6, 1.5, 1, 1.5)), (0, (9, 2)))


def dash(index: int) -> Any:
    """Another line for each round of colours."""
    return DASHES[index // len(CYCLE) % len(DASHES)]


def looks(losses: Sequence[str]) -> list[tuple[str, str, Any]]:
    """(colour, marker, dash) of each line: of a well-known objective always the same, which no other line has then.

    losses: "" for a line that is not its objective as such.
    """
    known = [loss if loss in KNOWN and loss not in losses[:i] else "" for i, loss in enumerate(losses)]
    taken = {KNOWN[loss][0] for loss in known if loss}
    free = [pair for pair in zip(CYCLE, MARKERS, strict=True) if pair[0] not in taken]
    others = itertools.cycle((*pair, dashes) for dashes in DASHES for pair in free)
    return [(*KNOWN[loss], DASHES[0]) if loss else next(others) for loss in known]


def looks_of(arms: Sequence[Arm]) -> list[tuple[str, str, Any]]:
    """The looks of lines that are arms: one with nothing else about it is its objective."""
    return looks([arm.loss if not arm.knobs.keys() - {"loss"} else "" for arm in arms])


def reference(index: int) -> dict[str, Any]:
    """Colour and dash of an objective that is a line across: black, brown once the dashes are used up.
    Dots are the base policy's."""
    turn, i = divmod(index, len(ACROSS))
    return {"color": (style.GRPO, style.OTHER)[turn % 2], "linestyle": ACROSS[i]}


def draw(axes: Axes, x: Sequence[float], found: Sequence[Cell], colour: str, marker: str, dashes: Any = "-") -> Artist:
    """A line with its interval, in per cent; values that are missing leave a gap."""
    mean, low, high = ([100 * c.record()[end] for c in found] for end in ("mean", "low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    own = {"color": colour, "marker": marker, "linestyle": dashes}
    return axes.plot(x, mean, markeredgecolor="white", markeredgewidth=0.5, **own)[0]


def focus(axes: Axes) -> None:
    """Show every line whole, and of the bands what lies within half the lines' span beyond them."""
    lines = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines] or [np.zeros(0)])
    lines = lines[np.isfinite(lines)]
    if not len(lines) or lines.min() == lines.max():
        return
    if axes.get_yscale() == "log":
        beyond = (lines.max() / lines.min()) ** 0.5
        near = lines.min() / beyond, lines.max() * beyond
    else:
        beyond = (lines.max() - lines.min()) / 2
        near = lines.min() - beyond, lines.max() + beyond
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, near[0]), min(top, near[1]))


def against_k(frames: Frames, found: Sequence[tuple[Comparable, Sequence[Line]]], label: Any) -> Figure:
    """pass@k against k: a panel per line, a curve per value of its knob, the base policy dotted."""
    panels = [(setting, line) for setting, made in found for line in made]
    figure = Figure(figsize=(style.WIDTH, 2.9 * math.ceil(len(panels) / 2) + 0.3), layout="constrained")
    grid = figure.subplots(math.ceil(len(panels) / 2), min(2, len(panels)), squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    for axes, (setting, line) in zip(grid, panels, strict=False):
        handles |= _passes(axes, frames, setting, line, label)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    legend(figure, handles, f"band: {INTERVAL}")
    return figure


def _passes(axes: Axes, frames: Frames, setting: Comparable, line: Line, label: Any) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    by_k = {1 if m.kind == Kind.AVG else m.k: m for m in metrics(setting).values()}
    ks = sorted(by_k)
    for i, (value, arm) in enumerate(zip(line.values, line.arms, strict=True)):
        cells = [overall(frames, arm, by_k[k], setting) for k in ks]
        handles[label(value)] = draw(axes, ks, cells, *look(i))
    values = [100 * base(frames, by_k[k], setting).mean for k in ks]
    if any(math.isfinite(v) for v in values):
        handles["base policy"] = axes.plot(ks, values, color=style.BASE, linestyle=":", linewidth=1.4)[0]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.set_ylabel("pass@k, %")
    where = "average over benchmarks" if setting.overall == AVERAGE else setting.overall
    axes.set_title(textwrap.fill(setting.titled(f"{line.name}, {where}"), 48), loc="left")
    return handles


@dataclass(frozen=True)
class Axis:
    """The knob along x: its name there, and how a value is written. base: of its logarithm."""

    label: str
    base: int = 2


def against_knob(
    frames: Frames, found: Sequence[tuple[Comparable, Sequence[Line]]], axis: Axis, beside: Sequence[Arm] = ()
) -> Figure:
    """Each metric against the value of a knob: a line per objective, the base policy dotted.

    beside: arms without the knob, of the same settings: dashed over all values.
    """
    drawing, panels = style.panels([setting for setting, _ in found], height=2.75)
    of = {setting.name: made for setting, made in found}
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        others = [arm for arm in beside if arm.setting == setting.name]
        handles |= _knob_panel(axes, frames, setting, of[setting.name], str(metric), axis, others)
    legend(drawing, handles, f"band: {INTERVAL}")
    return drawing


def _knob_panel(
    axes: Axes,
    frames: Frames,
    setting: Comparable,
    made: Sequence[Line],
    metric: str,
    axis: Axis,
    beside: Sequence[Arm],
) -> dict[str, Artist]:
    handles: dict[str, Artist] = {}
    if metric not in metrics(setting):  # pass@1 alone: the same number as avg@n
        axes.set_visible(False)
        return handles
    for line, own in zip(made, looks([line.loss for line in made]), strict=True):
        cells = [overall(frames, arm, metrics(setting)[metric], setting) for arm in line.arms]
        handles[line.name] = draw(axes, [float(v) for v in line.values], cells, *own)
    for i, arm in enumerate(beside):
        mean = overall(frames, arm, metrics(setting)[metric], setting).mean
        if math.isfinite(mean):
            name = f"{arm.method} ({arm.variant})" if arm.variant else arm.method
            handles[name] = axes.axhline(100 * mean, linewidth=1.1, **reference(i))
    first = base(frames, metrics(setting)[metric], setting).mean
    if math.isfinite(first):
        handles["base policy"] = axes.axhline(100 * first, color=style.BASE, linestyle=":", linewidth=1.4)
    ticks = sorted({v for line in made for v in line.values})
    axes.set_xscale("log", base=axis.base)
    axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axes.minorticks_off()
    axes.set_xlabel(axis.label)
    return handles


MOST_ARMS = 24  # of a figure: more cannot be told apart; the page's curves have them all


def legible(arms: Sequence[Arm], swept: Mapping[str, Sequence[str]]) -> tuple[list[Arm], str]:
    """(the arms that a figure shows, in order; what its legend says of the others)."""
    found = ordered(arms, swept)
    more = f"the first {MOST_ARMS} of {len(found)} arms" if len(found) > MOST_ARMS else ""
    return found[:MOST_ARMS], more


INTERVAL = "95 % interval over seeds and problems, as ± in the tables"
BAND = "mean over seeds; band: its 95 % interval (t) over them, from three on"


def legend(drawing: Figure, handles: dict[str, Artist], title: str = "") -> None:
    """Below, in as many columns as the longest name leaves room for; the figure grows by the rows after the first."""
    columns = max(1, min(7, 112 // (max(map(len, handles), default=1) + 7)))
    rows = math.ceil(len(handles) / columns)
    drawing.set_figheight(drawing.get_figheight() + 0.16 * max(0, rows - 1))
    drawing.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=columns,
        title=title or None,
        title_fontsize=7.5,
    )
