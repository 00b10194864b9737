"""The weights figure: w(p) measured from our estimators, with the closed forms drawn over them (MaxRL, Figure 1).

`python -m rlvr.weights` measures <home>/reports/weights/weights.csv; `python -m analysis.figures.weights` draws it
beside that file, and the report of the study exact_likelihood holds it too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from analysis.frame import Frame
from analysis.load import Frames
from analysis.stats import Array
from rlvr.metrics import weight_grpo, weight_maxrl, weight_ml, weight_rl

QUESTION = "How much does each objective weigh a problem of pass rate p, measured and in theory?"
STUDY = "exact_likelihood"
FILE = Path("reports") / "weights" / "weights.csv"

# Closed form of each advantage at G samples; GRPO's is the limit of large groups, Dr. GRPO's is RL's times 1 − 1/G.
FORMS: dict[str, Callable[[Array, int], Array]] = {
    "reinforce": lambda p, G: weight_rl(p),
    "rloo": lambda p, G: weight_rl(p),
    "dr_grpo": lambda p, G: (1 - 1 / G) * weight_rl(p),
    "grpo": lambda p, G: weight_grpo(p),
    "maxrl": lambda p, G: weight_maxrl(p, G - 1),
}
NAMES = {"reinforce": "REINFORCE", "rloo": "RLOO", "dr_grpo": "Dr. GRPO", "grpo": "GRPO", "maxrl": "MaxRL"}
MARKERS = {"reinforce": "s", "rloo": "x", "dr_grpo": "+", "grpo": "D", "maxrl": "o"}  # the first three coincide
COLOURS = {"reinforce": "#D55E00", "rloo": "#E69F00", "dr_grpo": "#CC79A7", "grpo": "#000000", "maxrl": "#0072B2"}


def figure(frames: Frames) -> Figure | None:
    """None unless this is the study of exact likelihood and its weights have been measured."""
    if frames.study != STUDY or frames.home is None or not (frames.home / FILE).exists():
        return None
    return drawn(pd.read_csv(frames.home / FILE))


def drawn(weights: Frame) -> Figure:
    """weights: loss, advantage, samples, pass_rate, weight, gradient_norm."""
    return style.drawn(lambda: _draw(weights))


def _draw(weights: Frame) -> Figure:
    drawing = Figure(figsize=(style.WIDTH, 3.1), layout="constrained")
    left, right = drawing.subplots(1, 2)
    largest = weights["samples"].max()
    known = [name for name in FORMS if name in set(weights["advantage"])]
    known += sorted(set(weights["advantage"]) - set(known))
    for (_, name), part in weights[weights["samples"] == largest].groupby(["loss", "advantage"], sort=False):
        _curve(left, part, _colour(name), FORMS.get(name), int(largest), _marker(name))
    _ml(left, weights)
    left.set_title(f"G = {largest} responses", loc="left")
    ramp = weights[weights["advantage"] == "maxrl"]
    for (_, G), part in ramp.groupby(["loss", "samples"], sort=True):
        order = list(np.sort(ramp["samples"].unique()))
        shade = style.lighter(COLOURS["maxrl"], 0.65 * (1 - (order.index(G) + 1) / len(order)))
        _curve(right, part, shade, FORMS["maxrl"], int(G))
        right.annotate(f"G = {G}", (part["pass_rate"].min(), part["weight"].max()), fontsize=7, va="bottom")
    _ml(right, weights)
    right.set_title("MaxRL: more responses, nearer to 1/p", loc="left")
    for axes in (left, right):
        axes.set(yscale="log", xlabel="pass rate p", ylabel="w(p): expected gradient / ∇p")
    left.set_xscale("logit")  # both ends in sight: GRPO's weight rises at either
    right.set_xscale("log")
    left.set_xticks([1e-4, 1e-2, 0.5, 0.99, 0.9999], ["$10^{-4}$", "0.01", "½", "0.99", "$1-10^{-4}$"])
    left.minorticks_off()
    handles = [Line2D([], [], color=_colour(n), marker=_marker(n), linewidth=1) for n in known]
    handles += [Line2D([], [], color=style.BASE, linestyle=":")]
    labels = [NAMES.get(n, n) for n in known]
    drawing.legend(handles, [*labels, "1/p: maximum likelihood"], loc="outside lower center", ncols=6,
                   title="points: measured from our code; lines: closed form (GRPO: limit of large groups)",
                   title_fontsize=7.5)  # fmt: skip
    return drawing


def _curve(
    axes: Axes,
    part: Frame,
    colour: str | tuple[float, ...],
    form: Callable[[Array, int], Array] | None,
    G: int,
    marker: str = "o",
) -> None:
    p = part["pass_rate"].to_numpy(float)
    axes.plot(p[::2], part["weight"].to_numpy(float)[::2], marker, color=colour, markersize=4 if marker in "x+" else 3)
    if form is not None:
        axes.plot(p, form(p, G), color=colour, linewidth=1)


def _ml(axes: Axes, weights: Frame) -> None:
    p = np.sort(weights["pass_rate"].unique())
    axes.plot(p, weight_ml(p), color=style.BASE, linestyle=":", zorder=1)


def _colour(advantage: str) -> str:
    return COLOURS.get(advantage, style.OTHER)


def _marker(advantage: str) -> str:
    return MARKERS.get(advantage, "v")


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
