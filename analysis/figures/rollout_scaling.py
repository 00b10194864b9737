"""The rollout figure: a metric against rollouts per prompt, a line per objective (MaxRL, figure 3)."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import Axis, against_knob
from analysis.scores.ablation import lines
from analysis.tables.rollout_scaling import KNOB

QUESTION = "Whose pass@k keeps growing with the number of rollouts per prompt?"


def figure(frames: Frames) -> Figure | None:
    """None unless some objective ran with two numbers of rollouts per prompt."""
    lines_by_setting = lines(frames, KNOB)
    axis = Axis("rollouts per prompt N")
    return style.with_style(lambda: against_knob(frames, lines_by_setting, axis)) if lines_by_setting else None
