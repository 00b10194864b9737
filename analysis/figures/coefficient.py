"""Accuracy and coverage against the coefficient of a divergence to the base policy, of a loss or of GRPO's
penalty; GRPO and DAPO without one beside (DPH-RL, figure 2, which shows the reverse KL)."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import Axis, against_knob
from analysis.scores.ablation import Line, lines
from analysis.scores.arm import arms
from analysis.scores.retention import NAMES, PENALTY

QUESTION = "What does each coefficient of a divergence to the base policy cost or keep?"
KNOB = "loss.coef"
WITHOUT = ("dph_none", "grpo", "dapo")  # objectives that pull towards no policy, but for the trainer's penalty


def figure(frames: Frames) -> Figure | None:
    """None unless a divergence ran with two coefficients."""
    found = lines(frames, KNOB, losses=[loss for loss in NAMES if loss not in WITHOUT])
    penalties = _penalties(frames)
    found = [(setting, [*made, *penalties.get(setting.name, [])]) for setting, made in found]
    beside = [a for a in arms(frames) if a.loss in WITHOUT and not a.control and not a.first.knob(PENALTY)]
    return style.drawn(lambda: against_knob(frames, found, Axis("coefficient", 10), beside)) if found else None


def _penalties(frames: Frames) -> dict[str, list[Line]]:
    """By setting, a line over the coefficients of the penalty for each objective with one."""
    found: dict[str, list[Line]] = {}
    for setting, made in lines(frames, PENALTY, losses=WITHOUT, least=1):
        for line in made:
            own = {value: arm for value, arm in zip(line.values, line.arms, strict=True) if value and not arm.control}
            if own:
                name = f"reverse KL ({line.name.replace('grpo', 'GRPO')}, {PENALTY})"
                found.setdefault(setting.name, []).append(Line(name, line.loss, tuple(own), tuple(own.values())))
    return found
