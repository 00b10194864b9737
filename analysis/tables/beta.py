"""The β table: PACS at each scale of its implicit reward, pass@k by k (PACS, figure 4)."""

from __future__ import annotations

from analysis.frames.frames import Frames
from analysis.report.ablation import ablation
from analysis.report.table import Table
from analysis.scores.ablation import lines

QUESTION = "How does the scale β of PACS's implicit reward β·log π/π_ref change pass@k?"
NEEDS = "two values of β of PACS, evaluated on problems"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    lines_by_setting = lines(frames, "loss.beta", losses=("pacs",))
    if not lines_by_setting:
        return None
    return ablation(
        frames, lines_by_setting, name="beta", title="β of PACS", question=QUESTION, label=lambda b: f"β = {b:g}"
    )
