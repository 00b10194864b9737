"""Training curves: a line per run, coloured by divergence, darker for larger 1/η."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from analysis.load import Frames

QUESTION = "What happens during training: reward, entropy, distance to the base policy, gradients, length?"
# First name that is logged counts: a continuous reward has no accuracy.
PANELS = (
    (("reward/accuracy", "reward/mean"), "accuracy of training samples"),
    (("reward/solved_fraction",), "problems with a success"),
    (("policy/entropy",), "entropy, nats per token"),
    (("policy/kl_base",), "KL to the base policy, nats"),
    (("optim/grad_norm",), "gradient norm"),
    (("response/length",), "response length, tokens"),
)
LOGARITHMIC = ("optim/grad_norm",)


def figure(frames: Frames) -> Figure | None:
    """None if no run has logged a step of training."""
    logged = set(frames.metrics.loc[frames.metrics["step"] > 0, "name"])
    panels = [(name, title) for names, title in PANELS if (name := next((n for n in names if n in logged), None))]
    return style.drawn(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list[tuple[str, str]]) -> Figure:
    rows = math.ceil(len(panels) / 3)
    drawing = Figure(figsize=(style.WIDTH, 1.95 * rows + 0.5), layout="constrained")
    grid = drawing.subplots(rows, 3, squeeze=False).ravel()
    curves = dict(list(frames.metrics[frames.metrics["step"] > 0].groupby(["name", "run_id"])))
    look = _looks(frames.runs)
    window = 1
    for axes, (name, title) in zip(grid, panels, strict=False):
        for run_id, line in look.items():
            if (name, run_id) in curves:
                window = max(window, _curve(axes, curves[name, run_id], line))
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_xlabel("step")
        if name in LOGARITHMIC:
            axes.set_yscale("log")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    handles = _legend(frames.runs)
    smooth = f"centred mean over {window} steps" if window > 1 else ""
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 7),
                   title="; ".join(x for x in (_shades(frames.runs), smooth) if x) or None,
                   title_fontsize=7.5)  # fmt: skip
    return drawing


def _curve(axes: Axes, part: pd.DataFrame, line: dict[str, object]) -> int:
    """Draw one run, smoothed by a centred mean over a twentieth of its length; returns the width of that mean."""
    part = part.sort_values("step")
    window = max(1, len(part) // 20)
    smooth = part["value"].replace([np.inf, -np.inf], np.nan).rolling(window, center=True, min_periods=1).mean()
    axes.plot(part["step"], smooth, linewidth=1.0, **line)
    return window


def _looks(runs: pd.DataFrame) -> dict[str, dict[str, object]]:
    """Colour by method; among the η of a method, darker for larger 1/η."""
    looks: dict[str, dict[str, object]] = {}
    etas = sorted(runs.loc[runs["eta"] > 0, "eta"].unique(), reverse=True)
    for run in runs.itertuples():
        if run.loss != "lad":
            looks[run.run_id] = {"color": style.GRPO if run.loss == "grpo" else style.OTHER, "linestyle": (0, (4, 2))}
            continue
        share = 1 - (etas.index(run.eta) + 1) / len(etas) if run.eta > 0 else 0.0
        looks[run.run_id] = {"color": style.lighter(style.colour(run.divergence), 0.7 * share)}
    return looks


def _legend(runs: pd.DataFrame) -> dict[str, Line2D]:
    handles = {}
    for loss, divergence in runs[["loss", "divergence"]].drop_duplicates().itertuples(index=False):
        if loss == "lad":
            handles[divergence] = Line2D([], [], color=style.colour(divergence))
        else:
            colour = style.GRPO if loss == "grpo" else style.OTHER
            handles[loss.upper()] = Line2D([], [], color=colour, linestyle=(0, (4, 2)))
    return handles


def _shades(runs: pd.DataFrame) -> str:
    return "darker: larger 1/η" if runs.loc[runs["loss"] == "lad", "eta"].nunique() > 1 else ""
