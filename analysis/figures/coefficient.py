"""Accuracy and coverage against the coefficient of a divergence to the base policy, of a loss or of GRPO's penalty;
GRPO and DAPO without one are horizontal lines (DPH-RL, figure 2, which shows the reverse KL)."""

from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import Axis, against_knob
from analysis.scores.ablation import Line, lines
from analysis.scores.arm import arms
from analysis.scores.retention import NAMES, PENALTY

QUESTION = "What does each coefficient of a divergence to the base policy cost or keep?"
KNOB = "loss.coef"
WITHOUT = ("dph_none", "grpo", "dapo")  # objectives without such a divergence, unless the trainer's penalty adds it


def figure(frames: Frames) -> Figure | None:
    """None unless a divergence ran with two coefficients."""
    lines_by_setting = lines(frames, KNOB, losses=[loss for loss in NAMES if loss not in WITHOUT])
    penalties = _penalties(frames)
    drawn_lines = [(setting, [*losses, *penalties.get(setting.name, [])]) for setting, losses in lines_by_setting]
    without = [a for a in arms(frames) if a.loss in WITHOUT and not a.control and not a.first.knob(PENALTY)]
    axis = Axis("coefficient", 10)
    return style.with_style(lambda: against_knob(frames, drawn_lines, axis, without)) if drawn_lines else None


def _penalties(frames: Frames) -> dict[str, list[Line]]:
    """By name of setting, a line over the coefficients of the penalty for each objective that ran with it."""
    by_setting: dict[str, list[Line]] = {}
    for setting, setting_lines in lines(frames, PENALTY, losses=WITHOUT, least=1):
        for line in setting_lines:
            by_coefficient = {value: arm for value, arm in zip(line.values, line.arms, strict=True) if value}
            if by_coefficient:
                name = f"reverse KL ({line.name}, {PENALTY})"
                by_setting.setdefault(setting.name, []).append(
                    Line(name, line.loss, tuple(by_coefficient), tuple(by_coefficient.values()))
                )
    return by_setting
