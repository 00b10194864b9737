"""Training curves: a line per arm, the mean over its seeds, with its 95 % band over them."""

import math

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.frames.digest import DRAWN
from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import BAND, drawn_as, focus, left_out, legend, legible
from analysis.report.looks import Look, looks_of
from analysis.scores import student
from analysis.scores.arm import arms
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.metric import possible, training_names

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
    shown, remark = legible(arms(frames), frames.swept)
    drawing, grid = style.sheet(len(panels), 3, height=1.95, more=0.5)
    drawn = frames.thinned_history(DRAWN).astype({"run_id": str, "name": str})
    window, handles = 1, dict[str, Artist]()
    for axes, (name, title) in zip(grid, panels, strict=True):
        values = drawn[drawn["name"] == name].pivot(index="step", columns="run_id", values="value")
        for arm, look in zip(shown, looks_of(shown, frames.baseline), strict=True):
            by_seed = values[[run.run_id for run in arm.drawn if run.run_id in values]].dropna(how="all")
            if len(by_seed):
                label = f"{arm.short}, {arm.setting}" if arm.setting else arm.short
                handles[label] = _curve(axes, by_seed, look, possible(name), band=len(shown) <= MOST_BANDS)
                window = max(window, _window(by_seed))
        numbers = values.to_numpy(float)
        low, high = (np.nanmin(numbers), np.nanmax(numbers)) if numbers.size else (math.nan, math.nan)
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        if low > 0 and high > SPAN * low:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(plain)
            axes.yaxis.set_minor_formatter(plain)
        focus(axes)
    remarks = [remark] if remark else []
    if any(len(arm.run_ids) > 1 for arm in shown):
        remarks.append(BAND if len(shown) <= MOST_BANDS else "mean over seeds")
    remarks += [f"smoothed over {window} steps"] if window > 1 else []
    legend(drawing, handles, "; ".join([*remarks, *left_out(shown)]))
    return drawing


def _window(by_seed: pd.DataFrame) -> int:
    """The number of steps over which a curve is smoothed: a tenth of them."""
    return max(1, len(by_seed) // 10)


def _curve(axes: Axes, by_seed: pd.DataFrame, look: Look, ends: tuple[float, float], *, band: bool) -> Artist:
    """Draw the mean over seeds, smoothed by a centred mean. by_seed: a row per step, a column per seed. band: draw the
    95 % band of the smoothed curves, from three seeds on. ends: of what is possible."""
    window = _window(by_seed)
    line = by_seed.mean(axis=1).rolling(window, center=True, min_periods=1).mean()
    if band and by_seed.shape[1] >= LEAST_SEEDS:
        smooth = by_seed.rolling(window, center=True, min_periods=1).mean()
        count = smooth.count(axis=1).to_numpy().astype(np.float64)
        count[count < LEAST_SEEDS] = np.nan
        half = student.critical(LEVEL, count - 1) * smooth.std(axis=1) / np.sqrt(count)
        low, high = (line - half).clip(*ends), (line + half).clip(*ends)
        axes.fill_between(line.index, low, high, color=look.colour, alpha=0.12, linewidth=0)
    return axes.plot(line.index, line, linewidth=1.0, **drawn_as(look, marked=False))[0]
