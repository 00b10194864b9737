"""Training curves: a line per arm (mean over its seeds), coloured by divergence, darker for larger 1/η."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from analysis.arms import Arm, arms
from analysis.frame import Frame
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
SPAN = 20  # a positive quantity whose values span more than this factor is drawn on a logarithmic axis


def figure(frames: Frames) -> Figure | None:
    """None if no run has logged a step of training."""
    logged = set(frames.metrics.loc[frames.metrics["step"] > 0, "name"])
    panels = [(name, title) for names, title in PANELS if (name := next((n for n in names if n in logged), None))]
    return style.drawn(lambda: _draw(frames, panels)) if panels else None


def _draw(frames: Frames, panels: list[tuple[str, str]]) -> Figure:
    rows = math.ceil(len(panels) / 3)
    drawing = Figure(figsize=(style.WIDTH, 1.95 * rows + 0.5), layout="constrained")
    grid = drawing.subplots(rows, 3, squeeze=False).ravel()
    found = arms(frames.runs)
    etas = sorted({a.eta for a in found if a.eta > 0}, reverse=True)
    training = frames.metrics[frames.metrics["step"] > 0]
    window = 1
    for axes, (name, title) in zip(grid, panels, strict=False):
        curves = training[training["name"] == name]
        for arm in found:
            window = max(window, _curve(axes, curves[curves["run_id"].isin(list(arm.run_ids))], _look(arm, etas)))
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_xlabel("step")
        if curves["value"].min() > 0 and curves["value"].max() > SPAN * curves["value"].min():
            axes.set_yscale("log")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    _legend(drawing, found, window)
    return drawing


def _curve(axes: Axes, part: Frame, look: dict[str, Any]) -> int:
    """Draw the mean over seeds, smoothed by a centred mean over a tenth of its length; returns that mean's width."""
    line = part.assign(value=part["value"].replace([np.inf, -np.inf], np.nan)).groupby("step")["value"].mean()
    window = max(1, len(line) // 10)
    axes.plot(line.index, line.rolling(window, center=True, min_periods=1).mean(), linewidth=1.0, **look)
    return window


def _look(arm: Arm, etas: list[float]) -> dict[str, Any]:
    """Colour by method; among the η of a method, darker for larger 1/η."""
    if arm.loss != "lad":
        return {"color": style.GRPO if arm.loss == "grpo" else style.OTHER, "linestyle": (0, (4, 2)), "zorder": 3}
    share = 1 - (etas.index(arm.eta) + 1) / len(etas) if arm.eta > 0 else 0.0
    return {"color": style.lighter(style.colour(arm.divergence), 0.75 * share)}


def _legend(drawing: Figure, found: list[Arm], window: int) -> None:
    handles: dict[str, Line2D] = {}
    for arm in found:
        name = arm.divergence if arm.loss == "lad" else arm.loss.upper()
        handles[name] = Line2D([], [], **_look(replace(arm, eta=math.nan), []))
    said = ["darker: larger 1/η"] if len({a.eta for a in found if a.eta > 0}) > 1 else []
    said += ["mean over seeds"] if any(len(a.run_ids) > 1 for a in found) else []
    said += [f"smoothed over {window} steps"] if window > 1 else []
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 7),
                   title="; ".join(said) or None, title_fontsize=7.5)  # fmt: skip
