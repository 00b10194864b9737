"""The bandit table: how close each method comes to LAD's target density, and how many of its modes it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Table
from analysis.scores.arms import inverse
from analysis.scores.cells import REASONS, Cell
from analysis.scores.stats import bootstrap
from analysis.scores.target import COVERED, Match, matches

QUESTION = "Does training reach the target density P_A ∝ e^{A/η} over the arms of the bandit, with every mode?"


def table(frames: Frames) -> Table | None:
    """None if no run stored a bandit policy."""
    found = matches(frames)
    if not found:
        return None
    cells: list[dict[str, Any]] = []
    for match in found:
        for column, cell in _cells(match).items():
            block = f"{frames.policy['arm'].nunique()} arms, 1/η = {inverse(match.eta)}"
            cells.append(
                {"block": block, "row": match.method, "metric": "", "column": column, **cell.record(), "hint": ""}
            )
    seeds = max(len(m.learned) for m in found)
    number = max(m.num_modes for m in found if len(m.learned))
    notes = (
        "Total variation is ½ Σ |P_π − P_A| over the arms, with P_π = (π/π_old)/Z: 0 is the target, 1 is disjoint.",
        f"A mode ({number} in the reward) is covered if P_π has at least {COVERED:.0%} of the target's mass around it.",
        f"Mean over {seeds} seed{'s' if seeds > 1 else ''}"
        + ("; ± is half the width of a 95 % bootstrap interval over them." if seeds > 1 else "."),
    )
    return Table(
        "bandit",
        "Bandit: the density that was learned",
        QUESTION,
        pd.DataFrame(cells),
        ("",),
        notes,
        scale=1.0,
        decimals=3,
        column_decimals={"modes covered": 1},
        unit="",
    )


def _cells(match: Match) -> dict[str, Cell]:
    names = ("total variation", "total variation, worst seed", "modes covered")
    S = len(match.learned)
    if not S:
        state = next((r for r in REASONS if r in match.states), "missing")
        return dict.fromkeys(names, Cell(planned=match.planned, state=state))
    state = "ok" if match.planned == S else "partial"
    columns = (match.total_variation, np.array([match.total_variation.max()]), match.modes_covered)
    return {
        name: Cell(float(v.mean()), bootstrap(v[:, None]) if len(v) > 1 else None, 0, S, match.planned, 0, state)
        for name, v in zip(names, columns, strict=True)
    }
