"""The η table: one block per divergence, one row per 1/η, beside the base policy and GRPO (LAD, table 6)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Table, blank_row, published, rows_of, with_notes
from analysis.scores.arms import Arm, grpo_command, inverse
from analysis.scores.cells import score, score_base
from analysis.scores.setting import Setting, comparisons, shown

QUESTION = "How does the temperature η of LAD's target e^{A/η} change accuracy (avg@k) and coverage (pass@k)?"
BASE = "base policy (step 0)"
GRPO = "GRPO"


def table(frames: Frames) -> Table | None:
    """None unless LAD runs have two η to compare."""
    found = comparisons(frames, etas=2)
    if not found:
        return None
    cells = [cell for setting in found for cell in _setting(frames, setting)]
    paper = published("lad_table_6.csv", label="LAD (arXiv:2602.20132), table 6, Qwen2.5-7B, as printed, %")
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    if all(len(s.sources) == 1 for s in found):
        notes.append(f"One benchmark ({found[0].sources[0]}): there is no average to take.")
    made = Table("eta", "η ablation", QUESTION, pd.DataFrame(cells), shown(found), tuple(notes), (paper,))
    return with_notes(made, frames)


def _setting(frames: Frames, setting: Setting) -> list[dict[str, Any]]:
    """Blocks of one setting. The reference rows stand in every block: a block can be read alone."""
    base = score_base(frames, setting.arms, setting.sources, setting.metrics)
    cells = []
    for divergence in dict.fromkeys(a.divergence for a in setting.lad):
        block = setting.titled(f"LAD, divergence {divergence}")
        cells += [*rows_of(block, BASE, base), *grpo_rows(frames, setting, block)]
        for arm in sorted((a for a in setting.lad if a.divergence == divergence), key=lambda a: (1 / a.eta, a.variant)):
            scores = score(frames, arm, setting.sources, setting.metrics)
            cells += rows_of(block, label(f"1/η = {inverse(arm.eta)}", arm), scores)
    return cells


def grpo_rows(frames: Frames, setting: Setting, block: str) -> list[dict[str, Any]]:
    """GRPO's rows in a block; if there is no such run, a row that says what to type."""
    cells = []
    for arm in setting.grpo:
        cells += rows_of(block, label(GRPO, arm), score(frames, arm, setting.sources, setting.metrics))
    if not setting.grpo:
        base = score_base(frames, setting.arms, setting.sources, setting.metrics)
        cells += blank_row(block, GRPO, base, hint=grpo_command(frames.runs, setting.lad))
    return cells


def label(name: str, arm: Arm) -> str:
    return f"{name} ({arm.variant})" if arm.variant else name
