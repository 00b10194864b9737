"""Accuracy and coverage against the coefficient of a divergence to the base policy, GRPO and DAPO beside (DPH-RL,
figure 2, which shows the reverse KL)."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import Axis, against_knob
from analysis.scores.ablation import lines
from analysis.scores.arm import arms
from analysis.scores.retention import NAMES

QUESTION = "What does each coefficient of a divergence to the base policy cost or keep?"
KNOB = "loss.coef"
WITHOUT = ("dph_none", "grpo", "dapo")  # objectives that pull towards no policy


def figure(frames: Frames) -> Figure | None:
    """None unless a divergence ran with two coefficients."""
    found = lines(frames, KNOB, losses=[loss for loss in NAMES if loss not in WITHOUT])
    beside = [arm for arm in arms(frames) if arm.loss in WITHOUT and not arm.control]
    return style.drawn(lambda: against_knob(frames, found, Axis("coefficient", 10), beside)) if found else None
