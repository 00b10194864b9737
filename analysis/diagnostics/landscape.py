"""The figure of LAD's loss landscape: all policies over three arms, and where descent leads (LAD, Figure 2)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.report import style

ARMS = ["arm_0", "arm_1", "arm_2"]  # columns: the probability of each arm
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the policies that always pull one arm

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("GRPO", {"color": style.GRPO, "linestyle": (0, (1, 1.2)), "linewidth": 1.5}),
    "grpo_kl": (r"GRPO, KL to $\pi_{old}$", {"color": "#009E73", "linestyle": (0, (4, 1.5)), "linewidth": 1.3}),
    "lad": ("LAD, practical", {"color": "#0072B2", "linewidth": 2.6}),
    "lad_theoretical": ("LAD, theoretical (Eq. 7)", {"color": "#D55E00", "linewidth": 1.1}),
}


def draw(arms: pd.DataFrame, landscape: pd.DataFrame, paths: pd.DataFrame, ends: pd.DataFrame) -> Figure:
    """arms: reward, target. Others: arm_0 … arm_2, divergence; landscape: loss; paths, ends: method, start, step."""
    return style.with_style(lambda: _draw(arms, landscape, paths, ends))


def _draw(arms: pd.DataFrame, landscape: pd.DataFrame, paths: pd.DataFrame, ends: pd.DataFrame) -> Figure:
    names = list(dict.fromkeys(landscape["divergence"]))
    drawing, grid = style.sheet(len(names), 2, height=2.75, more=0.5)
    for axes, name in zip(grid, names, strict=True):
        loss, lines, last = (f[f["divergence"] == name] for f in (landscape, paths, ends))
        colours = _landscape(axes, loss, arms["reward"].tolist())
        bar = drawing.colorbar(colours, ax=axes, shrink=0.75, format="%.2g")
        bar.set_label("practical loss above its minimum, nats", fontsize=7)
        for method, (_, look) in METHODS.items():
            for _, path in lines[lines["method"] == method].groupby("start"):
                axes.plot(*_place(path).T, **look)
        axes.plot(*_place(lines[lines["step"] == 0]).T, "o", zorder=5, **_START)
        axes.plot(*(arms["target"].to_numpy(float) @ CORNERS), "*", zorder=6, **_STAR)
        axes.plot(*_place(last[last["method"] == "grpo"]).T, "X", zorder=6, **_END)
        axes.set_title(name, loc="left")
    handles = [Line2D([], [], **look) for _, look in METHODS.values()]
    marks = {"o": _START, "X": _END, "*": _STAR}
    handles += [Line2D([], [], marker=m, linestyle="none", **look) for m, look in marks.items()]
    labels = [*(label for label, _ in METHODS.values()), "start", "GRPO's end", r"$P_A \propto \pi_{old}\, e^{A/\eta}$"]
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    return drawing


_START: dict[str, Any] = {"color": "white", "markeredgecolor": "#333333", "markersize": 4.5}
_END: dict[str, Any] = {"color": "black", "markeredgecolor": "white", "markersize": 6, "markeredgewidth": 0.7}
_STAR: dict[str, Any] = {"color": "#E69F00", "markeredgecolor": "black", "markersize": 11, "markeredgewidth": 0.7}


def _landscape(axes: Axes, part: pd.DataFrame, rewards: list[float]) -> Any:
    """Filled contours of the loss above its minimum, closer near it: level i is proportional to i²."""
    x, y = _place(part).T
    above = (part["loss"] - part["loss"].min()).to_numpy(float)
    levels = np.quantile(above, 0.97) * np.linspace(0, 1, 13) ** 2
    filled = axes.tricontourf(x, y, above, levels=levels, cmap="Greys", alpha=0.75, extend="max")
    axes.plot(*np.vstack([CORNERS, CORNERS[:1]]).T, color="#333333", linewidth=0.8)
    for i, (corner, shift) in enumerate(zip(CORNERS, (-0.06, -0.06, 0.03), strict=True)):
        axes.text(
            corner[0],
            corner[1] + shift,
            f"arm {i}, R = {rewards[i]:.2g}",
            ha="center",
            va="top" if shift < 0 else "bottom",
        )
    axes.set_aspect("equal")
    axes.axis("off")
    return filled


def _place(policies: pd.DataFrame) -> np.ndarray:
    """[N, 2] the points of the triangle at which policies stand."""
    return policies[ARMS].to_numpy(float) @ CORNERS
