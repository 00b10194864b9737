"""The rollout table: accuracy and pass@k against the number of responses per prompt (MaxRL, figure 3)."""

from __future__ import annotations

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.ablation import ablation
from analysis.report.table import Table
from analysis.scores.ablation import lines

QUESTION = "Do more rollouts per prompt N buy accuracy and pass@k, and for which objective longest?"
NEEDS = "two numbers of rollouts per prompt of one objective, evaluated on problems"
KNOB = "rollout.samples"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    lines_by_setting = lines(frames, KNOB)
    if not lines_by_setting:
        return None
    paper = published("maxrl", 3)
    return ablation(
        frames,
        lines_by_setting,
        name="rollout_scaling",
        title="Rollouts per prompt",
        question=QUESTION,
        label=lambda n: f"N = {n:g}",
        published=(paper,),
    )
