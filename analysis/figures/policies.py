"""pass@k against k, on a logarithmic axis: a line per evaluated policy, with its 95 % band."""

from __future__ import annotations

import math

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import dash, legend, look
from analysis.scores.arm import settings
from analysis.scores.cell import cell
from analysis.scores.evaluated import evaluations, label
from analysis.scores.metric import benchmarks, pass_at
from analysis.scores.selection import ordered
from analysis.scores.study import swept
from analysis.tables.policies import sizes

QUESTION = "How does coverage grow with the number of samples?"
COLUMNS = 3


def figure(frames: Frames) -> Figure | None:
    """None without an evaluation of more than one k."""
    panels = []
    found = evaluations(frames)
    for setting in settings(found):
        here = ordered([arm for arm in found if arm.setting == setting], swept(frames))
        sources, metrics = benchmarks(frames, [i for arm in here for i in arm.run_ids])
        panels += [(setting, source, here, sizes(metrics)) for source in sources if len(sizes(metrics)) > 1]
    return style.drawn(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list) -> Figure:
    rows = math.ceil(len(panels) / COLUMNS)
    drawing = Figure(figsize=(style.WIDTH, 2.6 * rows + 0.35), layout="constrained")
    grid = drawing.subplots(rows, min(COLUMNS, len(panels)), squeeze=False).flatten()
    handles: dict[str, Artist] = {}
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (setting, source, here, ks) in zip(grid, panels, strict=False):
        for number, arm in enumerate(here):
            cells = [cell(frames, arm, pass_at(k), (source,)) for k in ks]
            points = [(k, one) for k, one in zip(ks, cells, strict=True) if not one.empty]
            if not points:
                continue
            colour, marker = look(number)
            bounds = [one.interval() for _, one in points]
            x, y = [k for k, _ in points], [100 * one.mean for _, one in points]
            if all(math.isfinite(low) for low, _ in bounds):
                low, high = ([100 * bound[side] for bound in bounds] for side in (0, 1))
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            handles[label(arm)] = axes.plot(
                x, y, color=colour, marker=marker, markersize=3.5, linestyle=dash(number), linewidth=1.2
            )[0]
        axes.set_xscale("log", base=2)
        axes.set_title(", ".join(part for part in (source, setting) if part), loc="left")
        axes.set(xlabel="k", ylabel="pass@k, %")
    legend(drawing, handles)
    return drawing
