"""The size of advantages and updates along training (LAD, Figure 6), and the cost of a token (LAD, Figure 5).

A device is a GPU or, where there is none, a process on a CPU.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import drawn_as, left_out, legend, legible
from analysis.report.looks import Look, looks_of
from analysis.scores.arm import Arm, arms

QUESTION = "How large are advantages and log-ratios along training, and what does a token cost each arm?"
CURVES = {"advantage/abs_mean": "mean |advantage|", "policy/abs_log_ratio": "mean |log π/π_old|, nats"}
ASSUMED = "LAD assumes both sizes to be small, so that e^(A/η) and π/π_old are near 1 (App. B)"
COST = "throughput/gpu_s_per_token"


def figure(frames: Frames) -> Figure | None:
    """None if no run logged any of the metrics."""
    logged = frames.thinned_history([*CURVES, COST])
    parts = {str(name): part.astype({"run_id": str}) for name, part in logged.groupby("name", observed=True)}
    panels = [name for name in (*CURVES, COST) if name in parts]
    if not panels:
        return None
    return style.with_style(lambda: _draw(frames, parts, panels))


def _draw(frames: Frames, parts: dict[str, pd.DataFrame], panels: Sequence[str]) -> Figure:
    shown, more = legible([arm for arm in arms(frames) if not arm.control], frames.swept)
    looks = looks_of(shown, frames.baseline)
    drawing = Figure(figsize=(style.WIDTH, max(2.6, 0.15 * len(shown) + 0.9)), layout="constrained")
    handles: dict[str, Artist] = {}
    for axes, name in zip(drawing.subplots(1, len(panels), squeeze=False).ravel(), panels, strict=True):
        if name == COST:
            handles = _costs(axes, parts[name], shown, looks) | handles
            continue
        for arm, look in zip(shown, looks, strict=True):
            handles |= _curve(axes, parts[name], arm, drawn_as(look, marked=False))
        axes.set_title(CURVES[name], loc="left")
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_ylim(bottom=0)
    legend(drawing, handles, "; ".join(filter(None, (ASSUMED, more, *left_out(shown)))))
    return drawing


def _curve(axes: Axes, part: pd.DataFrame, arm: Arm, look: dict[str, Any]) -> dict[str, Artist]:
    mean = part[part["run_id"].isin([run.run_id for run in arm.drawn])].groupby("step")["value"].mean()
    if mean.empty:
        return {}
    return {arm.short: axes.plot(mean.index, mean, linewidth=1.0, **look)[0]}


def _costs(axes: Axes, part: pd.DataFrame, shown: Sequence[Arm], looks: Sequence[Look]) -> dict[str, Artist]:
    """Draw a box per arm over the steps of its runs (of a long run: over means of several steps): median, quartiles,
    whiskers at 5 and 95 %. Returns the legend entries."""
    values = [1e6 * part.loc[part["run_id"].isin(arm.run_ids), "value"].to_numpy() for arm in shown]
    boxes = axes.boxplot(values, orientation="horizontal", whis=(5, 95), showfliers=False, patch_artist=True)
    for box, median, look in zip(boxes["boxes"], boxes["medians"], looks, strict=True):
        box.set(facecolor=look.colour, alpha=0.5, linewidth=0.7)
        median.set(color="black", linewidth=1.0)
    axes.set_yticks(
        range(1, len(shown) + 1), [arm.short if len(arm.short) <= 22 else f"{arm.short[:21]}…" for arm in shown]
    )
    axes.invert_yaxis()
    axes.set_title("device time per token, µs", loc="left")
    return {arm.short: box for arm, box in zip(shown, boxes["boxes"], strict=True)}
