"""Training curves: a line per arm, the mean over its seeds, with its 95 % band over them. Lines of LAD have the colour
and marker of their divergence, darker for larger 1/η, and a dash per variant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.frames.frames import Frames
from analysis.frames.thin import DRAWN
from analysis.report import style
from analysis.report.lines import BAND, CYCLE, DASHES, focus, left_out, legend
from analysis.scores import student
from analysis.scores.arm import Arm, arms
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.metric import training_names
from analysis.scores.selection import ordered
from analysis.scores.study import swept

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

QUESTION = "What happens during training: reward, entropy, distance to the base policy, gradients, length?"
# Each panel: metric names, of which the first logged one is drawn (a continuous reward has no accuracy), and the title.
PANELS = (
    (("reward/accuracy", "reward/mean"), "accuracy of training samples"),
    (("reward/solved_fraction",), "problems with a success"),
    (("policy/entropy",), "entropy, nats per token"),
    (("policy/kl_base",), "KL to the base policy, nats"),
    (("optim/grad_norm",), "gradient norm"),
    (("response/length",), "response length, tokens"),
)
MOST_BANDS = 20  # arms; the bands of more cover each other
SPAN = 20  # a positive quantity whose values span more than this factor is drawn on a logarithmic axis


def figure(frames: Frames) -> Figure | None:
    """None if no run has logged a step of training."""
    logged = set(training_names(frames, [run.run_id for run in frames.rows]))
    panels: list[tuple[str, str]] = []
    for names, title in PANELS:
        panels += [(name, title) for name in names if name in logged][:1]
    return style.with_style(lambda: _draw(frames, panels)) if panels else None


def plain(value: float, position: float | None) -> str:
    """The label of a tick of a logarithmic axis: plain numbers, and only at 1, 2 and 5 times a power of ten."""
    del position
    return f"{value:g}" if f"{value:e}"[0] in "125" else ""


def _draw(frames: Frames, panels: list[tuple[str, str]]) -> Figure:
    shown = ordered(arms(frames), swept(frames))
    names, looks = _names(shown), _looks(shown)
    drawing, grid = style.sheet(len(panels), 3, height=1.95, more=0.5)
    logged = _logged(frames)
    window = 1
    for axes, (name, title) in zip(grid, panels, strict=True):
        curves = logged.get(name, {})
        for arm, look in zip(shown, looks, strict=True):
            parts = [curves[run.run_id] for run in arm.drawn if run.run_id in curves]
            window = max(window, _curve(axes, parts, look, band=len(shown) <= MOST_BANDS)) if parts else window
        low, high = _span(values for _, values in curves.values())
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        if low > 0 and high > SPAN * low:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(plain)
            axes.yaxis.set_minor_formatter(plain)
        focus(axes)
    _legend(drawing, shown, names, window)
    return drawing


def _logged(frames: Frames) -> dict[str, dict[str, tuple[Steps, Values]]]:
    """By metric and run id: the steps, ascending, and the values at them."""
    drawn = frames.thinned_history(DRAWN)
    steps, values = drawn["step"].to_numpy(np.int64), drawn["value"].to_numpy(np.float64)
    rows = drawn.groupby(["name", "run_id"], observed=True, sort=False).indices
    by_metric: dict[str, dict[str, tuple[Steps, Values]]] = {}
    for key, positions in rows.items():
        name, run_id = cast("tuple[object, object]", key)
        by_metric.setdefault(str(name), {})[str(run_id)] = (steps[positions], values[positions])
    return by_metric


def _span(parts: Iterable[Values]) -> tuple[float, float]:
    """(least, largest) value; (NaN, NaN) for none."""
    ends = [(values.min(), values.max()) for values in parts]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (math.nan, math.nan)


def _curve(axes: Axes, parts: Sequence[tuple[Steps, Values]], look: dict[str, Any], *, band: bool) -> int:
    """Draw the mean over seeds, smoothed by a centred mean over a tenth of its steps; returns that number of steps.

    parts: the curve of each seed; band: draw the 95 % band of the smoothed curves, where there are three seeds or more.
    """
    all_steps = np.unique(np.concatenate([steps for steps, _ in parts]))
    by_seed = np.full((len(all_steps), len(parts)), np.nan)
    for seed, (steps, values) in enumerate(parts):
        by_seed[np.searchsorted(all_steps, steps), seed] = values
    window = max(1, len(all_steps) // 10)
    line = smoothed(mean_of(by_seed, 1)[:, None], window)[:, 0]
    axes.plot(all_steps, line, linewidth=1.0, **look)
    if not band:
        return window
    of_seeds = smoothed(by_seed, window)
    seeds = (~np.isnan(of_seeds)).sum(1)
    several = seeds >= LEAST_SEEDS
    if several.any():
        count = seeds[several].astype(np.float64)
        spread = np.nanstd(of_seeds[several], axis=1, ddof=1) / np.sqrt(count)
        half = student.quantile((1 + LEVEL) / 2, count - 1) * spread
        axes.fill_between(
            all_steps[several], line[several] - half, line[several] + half, color=look["color"], alpha=0.12, linewidth=0
        )
    return window


def smoothed(curves: Values, window: int) -> Values:
    """The mean of the known values in a centred window of steps; NaN without any. curves and result: [steps, seeds]."""
    before, after = window // 2, (window - 1) // 2
    padded = np.pad(curves, ((before, after), (0, 0)), constant_values=np.nan)
    return mean_of(np.lib.stride_tricks.sliding_window_view(padded, window, axis=0), 2)


def mean_of(values: Values, axis: int) -> Values:
    """The mean over an axis of the values that are not NaN; NaN without any."""
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0).sum(axis), known.sum(axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _names(shown: list[Arm]) -> list[str]:
    """The name of each arm in the legend: its loss, the divergence of LAD, and what else distinguishes it, except η; of
    arms in several settings also the setting, as all stand in the same panels.
    """
    pairs = {(a.loss, a.beta) for a in shown if math.isfinite(a.beta)}
    several = {loss for loss, count in Counter(loss for loss, _ in pairs).items() if count > 1}
    names = [f"{_objective(arm)} {_remark(arm, beta_swept=arm.loss in several)}".rstrip() for arm in shown]
    settings_of: dict[str, set[str]] = {}
    for arm, name in zip(shown, names, strict=True):
        settings_of.setdefault(name, set()).add(arm.setting)
    return [
        f"{name}, {arm.setting}" if arm.setting and len(settings_of[name]) > 1 else name
        for arm, name in zip(shown, names, strict=True)
    ]


def _objective(arm: Arm) -> str:
    return f"LAD {arm.divergence}" if arm.loss == "lad" else arm.loss.upper()


def _remark(arm: Arm, *, beta_swept: bool) -> str:
    """`β=2, lr=1e-4`: the swept β and the variant of an arm, without the path of knobs."""
    parts = [f"β={arm.beta:g}"] if beta_swept else []
    for knob in filter(None, arm.variant.split(", ")):
        key, equals, value = knob.partition("=")
        parts.append(key.rpartition(".")[2] + equals + value)
    return ", ".join(parts)


def _looks(shown: list[Arm]) -> list[dict[str, Any]]:
    """Matplotlib's keywords for each arm. LAD: colour and marker by divergence, darker for larger 1/η, dash by variant.
    GRPO is black, other objectives take the remaining colours in turn; they are dashed where LAD is shown too."""
    names = _names(shown)
    etas = sorted({a.eta for a in shown if a.eta > 0}, reverse=True)
    variants = list(dict.fromkeys((a.setting, a.variant) for a in shown if a.loss == "lad"))
    others = list(dict.fromkeys(n for a, n in zip(shown, names, strict=True) if a.loss != "lad" and n != "GRPO"))
    dashes = DASHES[1:] if variants else DASHES
    taken = {style.colour(a.divergence) for a in shown if a.loss == "lad"}
    cycle = [colour for colour in CYCLE if colour not in taken]
    looks = list[dict[str, Any]]()
    for arm, name in zip(shown, names, strict=True):
        if arm.loss == "lad":
            share = 1 - (etas.index(arm.eta) + 1) / len(etas) if arm.eta > 0 else 0.0
            colour = style.lighter(style.colour(arm.divergence), 0.75 * share)
            line = DASHES[variants.index((arm.setting, arm.variant)) % len(DASHES)]
            marker = style.marker(arm.divergence)  # a light colour alone could be another divergence's
            looks.append({"color": colour, "linestyle": line, "marker": marker, "markersize": 3, "markevery": 0.2})
        else:
            turn, i = divmod(others.index(name), len(cycle)) if name in others else (0, None)
            colour = style.GRPO if i is None else cycle[i]
            looks.append({"color": colour, "linestyle": dashes[turn % len(dashes)], "zorder": 3})
    return looks


def _legend(drawing: Figure, shown: list[Arm], names: list[str], window: int) -> None:
    full = _looks([replace(arm, eta=math.nan) for arm in shown])
    handles: dict[str, Artist] = {name: Line2D([], [], **look) for name, look in zip(names, full, strict=True)}
    remarks = ["darker: larger 1/η"] if len({a.eta for a in shown if a.eta > 0}) > 1 else []
    several = any(len(arm.run_ids) > 1 for arm in shown)
    remarks += [BAND if len(shown) <= MOST_BANDS else "mean over seeds"] if several else []
    remarks += [f"smoothed over {window} steps"] if window > 1 else []
    remarks += left_out(shown)
    legend(drawing, handles, "; ".join(remarks))
