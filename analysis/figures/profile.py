"""Performance profiles over seeds: the share of an arm's runs that score so much or more; a mark for every run."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import by_arm, drawn_as
from analysis.report.looks import Look
from analysis.scores.arm import Arm
from analysis.scores.cell import cell
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.crossed import LEAST_SEEDS
from analysis.scores.metric import Metric

QUESTION = "How far do the runs of an arm lie apart, and how bad are the worst?"
WORST = 0.25  # share of an arm's runs
REMARK = "a mark: a run, a diverged one at 0; hollow: the mean of the worst quarter of an arm's runs"


def figure(frames: Frames) -> Figure | None:
    """None unless some arm has three runs that finished or diverged."""
    settings = [
        s for s in by_setting(frames) if any(len(runs(frames, a, s, s.shown[0])) >= LEAST_SEEDS for a in s.arms)
    ]
    rows = [(setting, setting.shown) for setting in settings]
    draw = partial(by_arm, frames, rows, partial(_steps, frames), height=2.6, remark=REMARK)
    return style.with_style(draw) if rows else None


def runs(frames: Frames, arm: Arm, setting: Comparable, metric: Metric) -> list[float]:
    """The scores of an arm's runs in per cent, the best first; diverged ones count as 0 (Agarwal et al. 2021, whose
    profiles are over tasks, too)."""
    scored = cell(frames, arm, metric, setting.sources)
    finished = [] if scored.scores is None else (100 * scored.scores.by_seed().values[:, 0]).tolist()
    return sorted([*finished, *[0.0] * scored.diverged], reverse=True)


def tail_mean(values: Sequence[float], share: float = WORST) -> float:
    """The mean of the worst `share` of the values (CVaR, expected shortfall); the last of them counts in part."""
    weights = np.clip(share * len(values) - np.arange(len(values)), 0, 1)
    return float(weights @ np.sort(values) / weights.sum())


def _steps(frames: Frames, axes: Axes, setting: Comparable, metric: Metric, arm: Arm, look: Look) -> Artist | None:
    axes.set(xlabel=f"{metric}, %", ylabel="runs with so much or more, %")
    scores = runs(frames, arm, setting, metric)
    if not scores:
        return None
    axes.plot(tail_mean(scores), 0, marker=look.marker, markerfacecolor="none", color=look.colour, markersize=6)
    shares = 100 * np.arange(1, len(scores) + 1) / len(scores)
    return axes.step(scores, shares, where="post", markersize=4, linewidth=1.2, **drawn_as(look))[0]
