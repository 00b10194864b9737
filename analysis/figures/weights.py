"""The weights figure: w(p) measured from our estimators, with the closed forms drawn over them (MaxRL, Figure 1).

`python -m rlvr.weights` measures <home>/reports/weights/weights.csv; `python -m analysis.figures.weights` draws it
beside that file, and the report of the study exact_likelihood holds it too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import objectives, style
from analysis.frame import Frame
from analysis.load import Frames
from analysis.stats import Array
from rlvr.metrics import weight_grpo, weight_maxrl, weight_ml, weight_rl

QUESTION = "How much does each objective weigh a problem of pass rate p, measured and in theory?"
STUDY = "exact_likelihood"
FILE = Path("reports") / "weights" / "weights.csv"

# Closed form of each objective at G samples; GRPO's is the limit of large groups, Dr. GRPO's is RL's times 1 − 1/G.
FORMS: dict[str, Callable[[Array, int], Array]] = {
    "reinforce": lambda p, G: weight_rl(p),
    "rloo": lambda p, G: weight_rl(p),
    "dr_grpo": lambda p, G: (1 - 1 / G) * weight_rl(p),
    "grpo": lambda p, G: weight_grpo(p),
    "maxrl": lambda p, G: weight_maxrl(p, G - 1),
}


def figure(frames: Frames) -> Figure | None:
    """None unless this is the study of exact likelihood and its weights have been measured."""
    if frames.study != STUDY or frames.home is None or not (frames.home / FILE).exists():
        return None
    return drawn(pd.read_csv(frames.home / FILE))


def drawn(weights: Frame) -> Figure:
    """weights: loss, advantage, samples, pass_rate, weight, gradient_norm."""
    return style.drawn(lambda: _draw(objectives.with_objectives(weights)))


def _draw(weights: Frame) -> Figure:
    drawing = Figure(figsize=(style.WIDTH, 3.1), layout="constrained")
    left, right = drawing.subplots(1, 2)
    G = int(weights["samples"].max())
    known = objectives.ordered(weights["objective"])
    for name in known:
        part = weights[(weights["samples"] == G) & (weights["objective"] == name)]
        _curve(left, part, objectives.look(name), FORMS.get(name), G)
    left.set_title(f"G = {G} responses", loc="left")
    left.set_xscale("logit")  # both ends in sight: GRPO's weight rises at either
    left.set_xticks([1e-4, 1e-2, 0.5, 0.99, 0.9999], ["$10^{-4}$", "0.01", "½", "0.99", "$1-10^{-4}$"])
    left.minorticks_off()
    _maxrl(right, weights[weights["objective"] == "maxrl"])
    for axes in (left, right):
        p = np.sort(weights["pass_rate"].unique())
        axes.plot(p, weight_ml(p), color=style.BASE, linestyle=":", zorder=1)
        axes.set(yscale="log", xlabel="pass rate p", ylabel="w(p): expected gradient / ∇p")
    handles = [Line2D([], [], linewidth=1, **objectives.look(n)) for n in known]
    handles += [Line2D([], [], color=style.BASE, linestyle=":")]
    labels = [*map(objectives.name, known), "1/p: maximum likelihood"]
    said = "points: measured from our code; lines: closed form (GRPO: limit of large groups)"
    drawing.legend(handles, labels, loc="outside lower center", ncols=6, title=said, title_fontsize=7.5)
    return drawing


def _maxrl(axes: Axes, part: Frame) -> None:
    """MaxRL at every G that was measured, darker for more."""
    sizes = sorted(part["samples"].unique())
    for i, G in enumerate(sizes):
        at = part[part["samples"] == G]
        colour = style.lighter(objectives.COLOURS["maxrl"], 0.65 * (1 - (i + 1) / len(sizes)))
        _curve(axes, at, {"color": colour, "marker": "o"}, FORMS["maxrl"], int(G))
        axes.annotate(f"G = {G}", (at["pass_rate"].min(), at["weight"].max()), fontsize=7, va="bottom")
    axes.set_title("MaxRL: more responses, nearer to 1/p", loc="left")
    axes.set_xscale("log")


def _curve(
    axes: Axes, part: Frame, look: dict[str, Any], form: Callable[[Array, int], Array] | None, samples: int
) -> None:
    p, weight = part["pass_rate"].to_numpy(float), part["weight"].to_numpy(float)
    axes.plot(p[::2], weight[::2], markersize=4 if look["marker"] in "x+" else 3, linestyle="none", **look)
    if form is not None:
        axes.plot(p, form(p, samples), color=look["color"], linewidth=1)


def main() -> None:
    from analysis.__main__ import default_home

    source = default_home() / FILE
    if not source.exists():
        print(f"analysis: {source} does not exist. Measure first: python -m rlvr.weights", file=sys.stderr)
        sys.exit(2)
    made = drawn(pd.read_csv(source))
    for kind in ("png", "pdf"):
        source.with_suffix(f".{kind}").write_bytes(style.encode(made, kind))
        print(source.with_suffix(f".{kind}"))


if __name__ == "__main__":
    main()
