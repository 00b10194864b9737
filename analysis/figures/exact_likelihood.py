"""The likelihood figure: accuracy in training and by rollouts, and gradient by pass rate (MaxRL, figures 2, 8, 9)."""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from analysis.frames.frames import Frames, grouped
from analysis.report import style
from analysis.report.lines import base_policy, draw, logarithmic
from analysis.report.looks import Look, lighter
from analysis.scores import objective
from analysis.scores.cell import base_cell, cell
from analysis.scores.exact_likelihood import EXACT, Learner, LikelihoodComparison, contests
from analysis.scores.trajectory import curve

QUESTION = "Does MaxRL approach exact maximum likelihood as rollouts grow, and what do gradients do at low pass rates?"
TITLE = 32  # characters of a title that fit above a panel
SMOOTH = 5  # steps over which pass rate and gradient norm are averaged before they are paired


def figure(frames: Frames) -> Figure | None:
    """None unless exact likelihood ran beside another objective."""
    all_contests = contests(frames)
    return style.with_style(lambda: _draw(frames, all_contests)) if all_contests else None


def _draw(frames: Frames, all_contests: list[LikelihoodComparison]) -> Figure:
    drawing = Figure(figsize=(style.WIDTH, 2.3 * len(all_contests) + 0.5), layout="constrained")
    for row, contest in zip(drawing.subplots(len(all_contests), 3, squeeze=False), all_contests, strict=True):
        _training(row[0], frames, contest)
        _scaling(row[1], frames, contest)
        _gradients(row[2], frames, contest)
    known = objective.ordered(name for contest in all_contests for name in contest.objectives)
    handles = [Line2D([], [], **_look(name)) for name in known] + [Line2D([], [], color=style.BASE, linestyle=":")]
    drawing.legend(
        handles,
        [*known, "base policy"],
        loc="outside lower center",
        ncols=7,
        title="left: darker for more rollouts per prompt",
        title_fontsize=7.5,
    )
    return drawing


def _look(name: str) -> dict[str, Any]:
    look = style.objective_look(name)
    return {**look, "linestyle": "--", "marker": ""} if name == EXACT else look


def _training(axes: Axes, frames: Frames, contest: LikelihoodComparison) -> None:
    for learner in contest.learners:
        points = curve(frames, learner.arm, contest.metric, (contest.source,))
        sizes = sorted({other.samples for other in contest.learners if other.objective == learner.objective})
        share = 1 - (sizes.index(learner.samples) + 1) / len(sizes)
        look = {**_look(learner.objective), "marker": ""}
        look["color"] = lighter(look["color"], 0.75 * share)
        axes.plot(points.steps, 100 * np.array(points.mean), linewidth=1.2, **look)
    axes.set(xlabel="step", ylabel="accuracy, %", ylim=(-3, 103))
    axes.set_title(textwrap.fill(f"{contest.name}: training", TITLE, break_on_hyphens=False), loc="left")


def _scaling(axes: Axes, frames: Frames, contest: LikelihoodComparison) -> None:
    sources = (contest.source,)
    lines = grouped(contest.rewarded, lambda x: (x.objective, "lr" in x.arm.tuned or x.arm.first.knob("lr")))
    for (name, _), learners in lines.items():
        cells = [cell(frames, learner.arm, contest.metric, sources) for learner in learners]
        look = style.objective_look(name)
        draw(axes, [learner.samples for learner in learners], cells, Look(look["color"], look["marker"], 0))
    for learner in contest.exact:
        mean = cell(frames, learner.arm, contest.metric, sources).mean
        axes.axhline(100 * mean, color=style.OBJECTIVES[EXACT][0], linestyle="--", linewidth=1.2)
    base_policy(axes, base_cell(frames, [learner.arm for learner in contest.learners], contest.metric, sources))
    sizes = sorted({learner.samples for learner in contest.rewarded})
    logarithmic(axes, sizes, map(str, sizes))
    axes.set(xlabel="rollouts per prompt, G", ylabel="accuracy, %", ylim=(-3, 103))
    axes.set_title("at the end", loc="left")


def _gradients(axes: Axes, frames: Frames, contest: LikelihoodComparison) -> None:
    for name in reversed(contest.objectives):
        largest = max(
            (learner for learner in contest.learners if learner.objective == name), key=lambda learner: learner.samples
        )
        for pairs in _pairs(frames, largest):
            colour = style.objective_look(name)["color"]
            axes.plot(100 * pairs["pass_rate"], pairs["norm"], ".", markersize=3, alpha=0.7, color=colour)
    axes.set(xscale="log", yscale="log", xlim=(None, 130), xlabel="pass rate in training, %", ylabel="gradient norm")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("gradients at the largest G", loc="left")


def _pairs(frames: Frames, learner: Learner) -> list[pd.DataFrame]:
    """Per seed: pass_rate and norm by step, both averaged over SMOOTH steps; without steps where either is 0."""
    wanted = {"reward/accuracy": "pass_rate", "optim/grad_norm": "norm"}
    logged = frames.thinned_history(list(wanted)).astype({"name": str})
    by_seed = []
    for run_id in learner.arm.run_ids:
        of_run = logged[logged["run_id"] == run_id]
        wide = of_run.pivot(index="step", columns="name", values="value").rename(columns=wanted)
        if set(wanted.values()) <= set(wide.columns):
            smooth = wide.rolling(SMOOTH, min_periods=1).mean()
            by_seed.append(smooth[(smooth["pass_rate"] > 0) & (smooth["norm"] > 0)])
    return by_seed
