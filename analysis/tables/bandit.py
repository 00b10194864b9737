"""The bandit table: how close each method comes to LAD's target density, and how many of its modes it keeps."""

from __future__ import annotations

import numpy as np

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, row_records
from analysis.report.table import Format, Table
from analysis.scores.bandit_target import Match, matches
from analysis.scores.cell import REASONS, Cell
from analysis.scores.contrast import Scores
from analysis.scores.density import COVERED, Array
from analysis.scores.labels import inverse

QUESTION = "Does training reach the target density P_A ∝ e^{A/η} over the arms of the bandit, with every mode?"
NEEDS = "runs of a bandit, some of them with an η"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    all_matches = matches(frames)
    if not all_matches:
        return None
    arms = frames.policy["arm"].nunique()
    records = []
    for match in all_matches:
        records += row_records(f"{arms} arms, 1/η = {inverse(match.eta)}", match.method, _cells(match))
    seeds = max(len(m.learned) for m in all_matches)
    num_modes = max((m.num_modes for m in all_matches if len(m.learned)), default=0)
    in_reward = f" ({num_modes} in the reward)" if num_modes else ""
    notes = (
        "Total variation is ½ Σ |P_π − P_A| over the arms, with P_π = (π/π_old)/Z: 0 is the target, 1 is disjoint.",
        f"A mode{in_reward} is covered if P_π has at least {COVERED:.0%} of the target's mass around it.",
        f"Mean over {seeds} seed{'' if seeds == 1 else 's'}"
        + ("; ± is half the width of a 95 % t interval over them." if seeds > 1 else "."),
    )
    return Table(
        "bandit",
        "Bandit: the density that was learned",
        QUESTION,
        cells_frame(records),
        ("",),
        notes,
        formats={"modes covered": Format(1.0, 1, "")},
        format=Format(1.0, 3, "", better=-1),
    )


def _cells(match: Match) -> dict[str, Cell]:
    """By column: one number per seed; the worst seed by total variation alone."""
    names = ("total variation", "total variation, worst seed", "modes covered")
    if not len(match.learned):
        state = next((r for r in REASONS if r in match.states), "missing")
        return dict.fromkeys(names, Cell(planned=match.planned, state=state))
    state = "ok" if match.planned == len(match.learned) else "partial"
    worst = int(match.total_variation.argmax())
    columns: dict[str, tuple[tuple[int, ...], Array]] = {
        names[0]: (match.seeds, match.total_variation),
        names[1]: ((match.seeds[worst],), match.total_variation[[worst]]),
        names[2]: (match.seeds, match.modes_covered),
    }
    return {
        name: Cell(float(np.mean(v)), Scores(seeds, ("",), v[:, None]), match.planned, 0, state)
        for name, (seeds, v) in columns.items()
    }
