"""The table of DPH-RL's divergences: accuracy, what is kept of the base policy, what is newly solved, styles."""

from __future__ import annotations

import math

import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Table, interval_notes, published
from analysis.scores.kept import EFFECTIVE, SURVIVES, SURVIVING, Kept, kept, strong

QUESTION = "Which divergence to the base policy keeps what it solved and its styles of answering, at what accuracy?"


def table(frames: Frames) -> Table | None:
    """None if no DPH-RL run was evaluated."""
    found = kept(frames)
    if not found:
        return None
    rows = []
    for block in dict.fromkeys(strong(k) for k in found if k.label != "base policy"):
        title = "coefficient of 1 or more" if block else "coefficients of the paper's size"
        for each in (k for k in found if k.label == "base policy" or strong(k) == block):
            rows += _row(title, each)
    seeds = max((c.seeds for k in found for c in k.cells.values()), default=1)
    notes = [
        "Keep rate: of the test problems that the base policy solved in at least one of its samples, the share still "
        "solved; exploration rate: of those it did not, the share now solved.",
        *interval_notes(max(1, seeds)),
    ]
    if any(SURVIVING in k.cells for k in found):
        notes.append(
            f"A style survives with at least {SURVIVES:.0%} of the correct responses; the effective number is e^H of "
            "the shares."
        )
    paper = published(
        "dph_rl_table_2.csv", label="DPH-RL (arXiv:2509.07430), table 2, SQL, Llama-3.1-8B-Instruct, as printed, %"
    )
    return Table(
        "alpha",
        "DPH-RL: divergences to the base policy",
        QUESTION,
        pd.DataFrame(rows),
        ("",),
        tuple(notes),
        (paper,),
        scale=1.0,
        decimals=3,
        column_decimals={SURVIVING: 1, EFFECTIVE: 2},
        unit="",
    )


def _row(block: str, found: Kept) -> list[dict[str, object]]:
    label = found.label if math.isnan(found.coef) else f"{found.label} (coef {found.coef:g})"
    return [
        {"block": block, "row": label, "metric": "", "column": name, **cell.record(), "hint": ""}
        for name, cell in found.cells.items()
    ]
