"""Performance profiles over seeds: the share of an arm's runs that score so much or more; a mark for every run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import drawn_as, legend, legible
from analysis.report.looks import looks_of
from analysis.scores.arm import Arm
from analysis.scores.cell import cell
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.crossed import LEAST_SEEDS
from analysis.scores.metric import Metric

QUESTION = "How far do the runs of an arm lie apart, and how bad are the worst?"
WORST = 0.25  # share of an arm's runs whose mean the legend has


def figure(frames: Frames) -> Figure | None:
    """None unless some arm has three runs that finished or diverged."""
    settings = [
        s for s in by_setting(frames) if any(len(runs(frames, a, s, s.shown[0])) >= LEAST_SEEDS for a in s.arms)
    ]
    return style.with_style(lambda: _draw(frames, settings)) if settings else None


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


def _draw(frames: Frames, settings: Sequence[Comparable]) -> Figure:
    drawing, panels = style.panels([(setting, setting.shown) for setting in settings], height=2.6)
    handles: dict[str, Artist] = {}
    for axes, setting, metric in panels:
        shown, _ = legible(setting.arms, frames.swept)
        worst = [] if metric != setting.shown[0] else shown
        for arm, look in zip(shown, looks_of(shown), strict=True):
            if scores := runs(frames, arm, setting, metric):
                shares = 100 * np.arange(1, len(scores) + 1) / len(scores)
                (line,) = axes.step(scores, shares, where="post", markersize=4, linewidth=1.2, **drawn_as(look))
                handles |= {f"{setting.titled(arm.short)} {tail_mean(scores):.1f}": line} if arm in worst else {}
        axes.set_ylabel(f"runs with this {metric} or more, %")
        axes.set_xlabel("score, %")
    title = f"a mark: a run, a diverged one at 0; numbers: mean {settings[0].shown[0]} of the worst quarter of runs"
    legend(drawing, handles, title)
    return drawing
