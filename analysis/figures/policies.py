"""pass@k against k, on a logarithmic axis: a line per evaluated policy, with its 95 % band."""

from __future__ import annotations

import math

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import colour_and_marker, dash, legend
from analysis.scores.arm import Arm, settings
from analysis.scores.cell import cell
from analysis.scores.metric import benchmarks, pass_at
from analysis.scores.policy_evaluations import evaluations, label
from analysis.scores.selection import ordered
from analysis.scores.study import swept
from analysis.tables.policies import sizes

QUESTION = "How does coverage grow with the number of samples?"
COLUMNS = 3


def figure(frames: Frames) -> Figure | None:
    """None without an evaluation that has pass@k for more than one k."""
    panels = []
    evaluated = evaluations(frames)
    for setting in settings(evaluated):
        setting_arms = ordered([arm for arm in evaluated if arm.setting == setting], swept(frames))
        sources, metrics = benchmarks(frames, [i for arm in setting_arms for i in arm.run_ids])
        panels += [(setting, source, setting_arms, sizes(metrics)) for source in sources if len(sizes(metrics)) > 1]
    return style.with_style(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list[tuple[str, str, list[Arm], list[int]]]) -> Figure:
    """panels: of each (setting, benchmark, arms, the k of pass@k)."""
    rows = math.ceil(len(panels) / COLUMNS)
    drawing = Figure(figsize=(style.WIDTH, 2.6 * rows + 0.35), layout="constrained")
    grid = drawing.subplots(rows, min(COLUMNS, len(panels)), squeeze=False).flatten()
    handles: dict[str, Artist] = {}
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (setting, source, setting_arms, ks) in zip(grid, panels, strict=False):
        for number, arm in enumerate(setting_arms):
            cells = [cell(frames, arm, pass_at(k), (source,)) for k in ks]
            points = [(k, score) for k, score in zip(ks, cells, strict=True) if not score.empty]
            if not points:
                continue
            colour, marker = colour_and_marker(number)
            bounds = [score.interval() for _, score in points]
            x, y = [k for k, _ in points], [100 * score.mean for _, score in points]
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
