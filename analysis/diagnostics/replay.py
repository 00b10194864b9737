"""The figure of a replay: which objectives agree on the direction, and whom each of them pulls up or pushes down."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.report import style
from analysis.report.lines import drawn_as
from analysis.report.looks import numbered


def draw(cosines: pd.DataFrame, weights: pd.DataFrame, prompts: pd.DataFrame) -> Figure:
    """cosines: square, named. weights: objective, outcome, pass_rate, weight; one row per objective and response.
    prompts: objective, pass_rate, gradient_norm; one row per objective and prompt.
    """
    return style.with_style(lambda: _draw(cosines, weights, prompts))


def _draw(cosines: pd.DataFrame, weights: pd.DataFrame, prompts: pd.DataFrame) -> Figure:
    names = [str(n) for n in cosines.index]
    side = max(3.0, min(0.42 * len(names) + 1.3, 6.0))
    below = 2.6
    figure = Figure(figsize=(style.WIDTH, side + below), layout="constrained")
    panels = figure.subplot_mosaic(
        [["cosines", "weights"], ["prompts", "prompts"]], width_ratios=(1.0, 1.05), height_ratios=(side, below)
    )
    _heat(panels["cosines"], cosines.to_numpy(float), names)
    _lines(panels["weights"], weights, names)
    _scatter(panels["prompts"], prompts, names)
    figure.legend(
        _handles(names), [*names, "correct responses", "wrong responses"], loc="outside lower center", ncols=3
    )
    return figure


def _heat(axes: Axes, values: np.ndarray, names: Sequence[str]) -> None:
    axes.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r")
    for (i, j), value in np.ndenumerate(values):
        if len(names) <= 12:
            dark = abs(value) > 0.6
            axes.text(
                j,
                i,
                f"{value:.2f}" if np.isfinite(value) else "–",
                ha="center",
                va="center",
                fontsize=7.5 if len(names) <= 6 else 6,
                color="white" if dark else "#222222",
            )
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    axes.set_title("cosine between gradients", loc="left")


def _lines(axes: Axes, weights: pd.DataFrame, names: Sequence[str]) -> None:
    """Mean weight of the correct and of the wrong responses against their group's pass rate."""
    for i, name in enumerate(names):
        part = weights[weights["objective"] == name]
        scale = part["weight"].abs().mean()
        for correct, marker in ((True, "o"), (False, "X")):
            chosen = part[(part["outcome"] == "correct") == correct]
            line = chosen.groupby("pass_rate")["weight"].mean()
            if len(line) and scale > 0:
                axes.plot(
                    line.index,
                    line / scale,
                    **_look(i),
                    marker=marker,
                    markersize=4 if correct else 4.5,
                    markeredgecolor="white",
                    markeredgewidth=0.4,
                    linewidth=_width(i, len(names)),
                )
    axes.axhline(0, color=style.BASE, linewidth=0.8)
    axes.set_xlabel("pass rate of the group")
    axes.set_ylabel("mean weight / mean |weight|")
    axes.set_title("pull on a response, −∂loss/∂log p", loc="left")


def _scatter(axes: Axes, prompts: pd.DataFrame, names: Sequence[str]) -> None:
    """Norm of the gradient on each prompt by itself, and its mean at each pass rate."""
    for i, name in enumerate(names):
        part = prompts[prompts["objective"] == name]
        axes.scatter(part["pass_rate"], part["gradient_norm"], s=7, color=_look(i)["color"], alpha=0.35, linewidths=0)
        mean = part.groupby("pass_rate")["gradient_norm"].mean()
        axes.plot(mean.index, mean, **_look(i), linewidth=_width(i, len(names)))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("pass rate of the prompt")
    axes.set_ylabel("gradient norm")
    axes.set_title("gradient on one prompt alone", loc="left")


def _handles(names: Sequence[str]) -> list[Line2D]:
    kinds = [Line2D([], [], color="#333333", marker=m, linestyle="none") for m in ("o", "X")]
    return [Line2D([], [], **_look(i)) for i in range(len(names))] + kinds


def _look(i: int) -> dict[str, Any]:
    look = drawn_as(numbered(i))
    return {name: look[name] for name in ("color", "linestyle")}


def _width(i: int, number: int) -> float:
    """Thick lines below thin ones: objectives that agree exactly are all seen."""
    return 1.0 + 3.0 * (number - 1 - i) / max(number - 1, 1)
