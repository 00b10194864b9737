"""The weighting table of PACS: a row per `loss.weight` (PACS, table 6)."""

from __future__ import annotations

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.ablation import ablation
from analysis.report.table import Table
from analysis.scores.ablation import lines

QUESTION = "Must PACS weigh right and wrong responses alike, and what does either of them teach alone?"
NEEDS = "two values of loss.weight of PACS, evaluated on problems"
KNOB = "loss.weight"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    lines_by_setting = lines(frames, KNOB, losses=("pacs",))
    if not lines_by_setting:
        return None
    paper = published("pacs", 6)
    return ablation(
        frames,
        lines_by_setting,
        name="weighting",
        title="Weights of PACS",
        question=QUESTION,
        label=str,
        published=(paper,),
    )
