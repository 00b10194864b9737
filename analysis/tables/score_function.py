"""The score_function table of PACS: a row per `loss.score` (PACS, tables 9 to 13)."""

from __future__ import annotations

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.ablation import ablation
from analysis.report.table import Table
from analysis.scores.ablation import lines

QUESTION = "How should PACS compare the implicit rewards of a group: RLOO, GRPO, Dr. GRPO, or not at all?"
NEEDS = "two values of loss.score of PACS, evaluated on problems"
KNOB = "loss.score"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    lines_by_setting = lines(frames, KNOB, losses=("pacs",))
    if not lines_by_setting:
        return None
    paper = published("pacs", 9, 10, 11, 12, 13)
    return ablation(
        frames,
        lines_by_setting,
        name="score_function",
        title="Score function of PACS",
        question=QUESTION,
        label=str,
        published=(paper,),
    )
