"""The weights figure: w(p) measured from our estimators, with the closed forms drawn over them (MaxRL, Figure 1).

`python -m rlvr.diagnostics.weights` measures <home>/reports/weights/weights.csv and draws it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.report import style
from analysis.report.looks import lighter
from analysis.scores import objective
from rlvr.metrics import weight_grpo, weight_maxrl, weight_ml, weight_pass, weight_rl

Array = NDArray[np.float64]
Form = Callable[[Array, int, int], Array]

# Closed form of each objective at G samples, and T (MaxRL) or k (PKPO); GRPO's is the limit of large groups, Dr. GRPO's
# is RL's times 1 − 1/G.
FORMS: dict[str, Form] = {
    "cross_entropy": lambda p, G, order: weight_ml(p),
    "reinforce": lambda p, G, order: weight_rl(p),
    "rloo": lambda p, G, order: weight_rl(p),
    "dr_grpo": lambda p, G, order: (1 - 1 / G) * weight_rl(p),
    "grpo": lambda p, G, order: weight_grpo(p),
    "pkpo": lambda p, G, order: weight_pass(p, order),
    "maxrl": lambda p, G, order: weight_maxrl(p, order),
}


def drawn(weights: pd.DataFrame) -> Figure:
    """weights: loss, advantage, divergence and eta (of LAD), order (T or k, else nothing), samples, pass_rate, weight,
    gradient_norm."""
    pairs = zip(weights["loss"], weights["advantage"], strict=True)
    named = weights.assign(order=weights["order"].fillna(0), objective=[objective.objective(*pair) for pair in pairs])
    return style.with_style(lambda: _draw(named))


def _draw(weights: pd.DataFrame) -> Figure:
    lad = weights[weights["loss"] == "lad"]
    weights = weights[weights["loss"] != "lad"]
    if weights.empty:
        drawing = Figure(figsize=(style.WIDTH / 2, 3.0), layout="constrained")
        _lad(drawing.subplots(), lad)
        return drawing
    drawing = Figure(figsize=(style.WIDTH * (1.0 if lad.empty else 1.5), 3.3), layout="constrained")
    left, right, *rest = drawing.subplots(1, 2 if lad.empty else 3)
    for axes in rest:
        _lad(axes, lad)
    G = int(weights["samples"].max())
    most = weights[weights["samples"] == G]
    handles, labels = [], []
    for name in objective.ordered(most["objective"]):
        for order, part in most[most["objective"] == name].groupby("order"):
            _curve(left, part, style.objective_look(name), FORMS.get(name))
            handles.append(Line2D([], [], linewidth=1, **style.objective_look(name)))
            labels.append(name + (f", {'k' if name == 'pkpo' else 'T'} = {order:.0f}" if order else ""))
    left.set_title(f"G = {G} responses", loc="left")
    left.set_xscale("logit")  # both ends in sight: GRPO's weight rises at either
    left.set_xticks([1e-4, 1e-2, 0.5, 0.99, 0.9999], ["$10^{-4}$", "0.01", "½", "0.99", "$1-10^{-4}$"])
    left.minorticks_off()
    _maxrl(right, weights[weights["objective"] == "maxrl"])
    for axes in (left, right):
        p = np.sort(weights["pass_rate"].unique())
        axes.plot(p, weight_ml(p), color=style.BASE, linestyle=":", zorder=1)
        axes.set(yscale="log", xlabel="pass rate p", ylabel="w(p): expected gradient / ∇p")
    left.set_ylim(bottom=1e-2)  # PKPO's weight falls without end
    handles += [Line2D([], [], color=style.BASE, linestyle=":")]
    labels += ["1/p: maximum likelihood"]
    said = "points: measured from our code; lines: closed form (GRPO: limit of large groups)"
    drawing.legend(handles, labels, loc="outside lower center", ncols=4, title=said, title_fontsize=7.5)
    return drawing


def _lad(axes: Axes, part: pd.DataFrame) -> None:
    """LAD's divergences at the largest G. In expectation kl is GRPO over η: its constant has no gradient."""
    G = int(part["samples"].max())
    etas = sorted(part["eta"].unique())
    for (divergence, eta), each in part[part["samples"] == G].groupby(["divergence", "eta"], sort=False):
        name = str(divergence)
        hue, marker = style.divergence_look(name)
        colour = lighter(hue, 0.6 * etas.index(eta) / len(etas))
        _curve(axes, each, {"color": colour, "marker": marker}, None)
        p, weight = each["pass_rate"].to_numpy(float), each["weight"].to_numpy(float)
        axes.plot(p, weight, color=colour, linewidth=0.6, label=f"{divergence}, η = {eta:g}")
    p = np.sort(part["pass_rate"].unique())
    axes.plot(p, weight_ml(p), color=style.BASE, linestyle=":", zorder=1)
    axes.set(xscale="log", yscale="log", xlabel="pass rate p", ylabel="w(p)", ylim=(1e-2, 1e5))
    axes.set_title(f"LAD, G = {G}", loc="left")
    axes.legend(fontsize=6)


def _maxrl(axes: Axes, part: pd.DataFrame) -> None:
    """MaxRL at every G and T that was measured, darker for more."""
    sizes = sorted(part[["samples", "order"]].drop_duplicates().itertuples(index=False))
    for i, (G, order) in enumerate(sizes):
        at = part[(part["samples"] == G) & (part["order"] == order)]
        colour = lighter(style.OBJECTIVES["maxrl"][0], 0.65 * (1 - (i + 1) / len(sizes)))
        _curve(axes, at, {"color": colour, "marker": "o"}, FORMS["maxrl"])
        said = f"G = {G}" if order == G - 1 else f"G = {G}, T = {order:.0f}"
        axes.annotate(
            said,
            (at["pass_rate"].min(), at["weight"].max()),
            fontsize=7,
            va="bottom",
            xytext=(0, 3),
            textcoords="offset points",
        )
    axes.set_title("MaxRL: more responses, nearer to 1/p", loc="left")
    axes.set_xscale("log")


def _curve(axes: Axes, part: pd.DataFrame, look: dict[str, Any], form: Form | None) -> None:
    p, weight = part["pass_rate"].to_numpy(float), part["weight"].to_numpy(float)
    axes.plot(p[::2], weight[::2], markersize=4 if look["marker"] in "x+" else 3, linestyle="none", **look)
    if form is not None:
        G, order = int(part["samples"].iloc[0]), int(part["order"].iloc[0])
        axes.plot(p, form(p, G, order), color=look["color"], linewidth=1)
