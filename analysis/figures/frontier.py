"""The frontier: pass@k and entropy against avg@k along training, a path per arm from the base policy to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import legend, legible, looks_of
from analysis.scores.arm import Arm
from analysis.scores.comparable import Comparable
from analysis.scores.metric import ENTROPY, Kind, Metric, trained
from analysis.scores.study import swept
from analysis.scores.trajectory import curve, evaluated_between

QUESTION = "Which arm keeps more coverage and entropy at equal accuracy?"


def figure(frames: Frames) -> Figure | None:
    """None unless some run was evaluated in between, by avg@n and by something else."""
    found = [(s, others) for s in evaluated_between(frames) if (others := _others(frames, s))]
    return style.drawn(lambda: _draw(frames, found)) if found else None


def _others(frames: Frames, setting: Comparable) -> list[Metric]:
    """What stands against avg@n; [] where that was not measured."""
    if not any(m.kind == Kind.AVG for m in setting.shown):
        return []
    logged = trained(frames, [i for arm in setting.arms for i in arm.run_ids])
    return [*(m for m in setting.shown if m.kind == Kind.PASS), *([ENTROPY] if ENTROPY.key in logged else [])]


def _draw(frames: Frames, found: Sequence[tuple[Comparable, list[Metric]]]) -> Figure:
    drawing = Figure(figsize=(style.WIDTH, 2.9 * len(found) + 0.35), layout="constrained")
    columns = max(len(others) for _, others in found)
    handles: dict[str, Artist] = {}
    more = ""
    for row, (setting, others) in zip(drawing.subplots(len(found), columns, squeeze=False), found, strict=True):
        for axes in row[len(others) :]:
            axes.set_visible(False)
        judge = next(m for m in setting.shown if m.kind == Kind.AVG)
        shown, more = legible(setting.arms, swept(frames))
        for axes, metric in zip(row, others, strict=False):
            for arm, look in zip(shown, looks_of(shown), strict=True):
                path = _path(axes, frames, setting, (judge, metric), arm, look)
                handles |= {arm.label: path} if path is not None else {}
            axes.set_title(f"{metric}" + (f"  ({setting.name})" if setting.name else ""), loc="left")
            axes.set(xlabel=f"{judge}, %", ylabel=f"{metric}, {metric.unit}")
    legend(drawing, handles, "; ".join(filter(None, (more, "large mark: the last evaluation"))))
    return drawing


def _path(
    axes: Axes, frames: Frames, setting: Comparable, pair: tuple[Metric, Metric], arm: Arm, look: tuple[str, str, Any]
) -> Artist | None:
    """Evaluations in their order; the last one is the large mark."""
    x, y = (curve(frames, arm, metric, setting.sources) for metric in pair)
    steps = [step for step in x.steps if step in y.steps]
    if not steps:
        return None
    colour, marker, dashes = look
    scale = pair[1].scale
    xs = [100 * x.mean[x.steps.index(step)] for step in steps]
    ys = [scale * y.mean[y.steps.index(step)] for step in steps]
    axes.plot(xs[-1], ys[-1], marker=marker, color=colour, markersize=6)
    return axes.plot(xs, ys, color=colour, marker=marker, markersize=2.5, linestyle=dashes, linewidth=1.1)[0]
