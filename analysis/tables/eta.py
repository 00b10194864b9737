"""The η table: one block per divergence, one row per 1/η, beside the base policy and GRPO (LAD, table 6)."""

from __future__ import annotations

import pandas as pd

from analysis.arms import Arm, arms, grpo_command, inverse, settings
from analysis.cells import benchmarks, score, score_base
from analysis.load import Frames
from analysis.table import Table, blank_row, published, rows_of, shown, with_notes

QUESTION = "How does the temperature η of LAD's target e^{A/η} change accuracy (avg@k) and coverage (pass@k)?"
BASE = "base policy (step 0)"
GRPO = "GRPO"


def table(frames: Frames) -> Table | None:
    """None if no LAD run has an η."""
    found = arms(frames.runs)
    lad = [a for a in found if a.loss == "lad" and a.eta > 0]
    sources, metrics = benchmarks(frames, frames.runs["run_id"])
    if not lad or not metrics:
        return None
    cells = []
    for setting in settings(lad):
        cells += _setting(frames, [a for a in found if a.setting == setting], sources, metrics)
    paper = published("lad_table_6.csv", label="LAD (arXiv:2602.20132), table 6, Qwen2.5-7B, as printed, %")
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    if len(sources) == 1:
        notes.append(f"One benchmark ({sources[0]}): there is no average to take.")
    made = Table("eta", "η ablation", QUESTION, pd.DataFrame(cells), shown(metrics), tuple(notes), (paper,))
    return with_notes(made, frames)


def _setting(frames: Frames, found: list[Arm], sources: list[str], metrics: list) -> list[dict]:
    """Blocks of one setting. The reference rows stand in every block: a block can be read alone."""
    lad = [a for a in found if a.loss == "lad" and a.eta > 0]
    grpo = [a for a in found if a.loss == "grpo"]
    base = score_base(frames, found, sources, metrics)
    scores = {a.group_id: score(frames, a, sources, metrics) for a in [*lad, *grpo]}
    cells = []
    for divergence in dict.fromkeys(a.divergence for a in lad):
        block = ", ".join(x for x in (f"LAD, divergence {divergence}", lad[0].setting) if x)
        cells += rows_of(block, BASE, base)
        for arm in grpo:
            cells += rows_of(block, label(GRPO, arm), scores[arm.group_id])
        if not grpo:
            cells += blank_row(block, GRPO, base, hint=grpo_command(frames.runs, lad))
        for arm in sorted((a for a in lad if a.divergence == divergence), key=lambda a: (1 / a.eta, a.variant)):
            cells += rows_of(block, label(f"1/η = {inverse(arm.eta)}", arm), scores[arm.group_id])
    return cells


def label(name: str, arm: Arm) -> str:
    return f"{name} ({arm.variant})" if arm.variant else name
