"""The weighting table of PACS: a row per `loss.weight` (PACS, table 6)."""

from __future__ import annotations

from analysis.frames.frames import Frames
from analysis.report.ablation import ablation
from analysis.report.table import Table, published
from analysis.scores.ablation import lines

QUESTION = "Must PACS weigh right and wrong responses alike, and what does either of them teach alone?"
KNOB = "loss.weight"


def table(frames: Frames) -> Table | None:
    """None unless PACS ran with two of them."""
    found = lines(frames, KNOB, losses=("pacs",))
    if not found:
        return None
    paper = published("pacs_table_6.csv", label="PACS (arXiv:2509.02522), table 6, Qwen3-4B, as printed, %")
    return ablation(
        frames, found, name="weighting", title="Weights of PACS", question=QUESTION, label=str, published=(paper,)
    )
