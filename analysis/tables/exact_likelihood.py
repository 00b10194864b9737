"""The likelihood table: each objective by rollouts per prompt, beside exact maximum likelihood (MaxRL, Fig. 2, 8)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.frames.load import Frames
from analysis.report.table import Table, rows_of, with_notes
from analysis.scores import objectives
from analysis.scores.cells import score, score_base
from analysis.scores.likelihood import EXACT, Contest, Learner, contests

QUESTION = "How near does each objective come to exact maximum likelihood as rollouts per prompt grow?"
BASE = "base policy (step 0)"


def table(frames: Frames) -> Table | None:
    """None unless exact likelihood ran beside another objective."""
    found = contests(frames)
    if not found:
        return None
    cells = [cell for contest in found for cell in _block(frames, contest)]
    notes = (
        "Accuracy at the last evaluation. Cross-entropy learns from the known answer and takes no rollouts.",
        "G: rollouts per prompt. MaxRL at G follows the expansion of log p to order G − 1.",
        "One learning rate for all arms of a block: an objective that stalls here may learn at a larger one.",
    )
    shown = tuple(dict.fromkeys(str(c.metric) for c in found))
    made = Table("exact_likelihood", "Exact likelihood", QUESTION, pd.DataFrame(cells), shown, notes, decimals=2)
    return with_notes(made, frames)


def _block(frames: Frames, contest: Contest) -> list[dict[str, Any]]:
    sources, metrics = [contest.source], [contest.metric]
    base = score_base(frames, [x.arm for x in contest.learners], sources, metrics)
    cells = rows_of(contest.name, BASE, base)
    for learner in contest.learners:
        cells += rows_of(contest.name, label(learner), score(frames, learner.arm, sources, metrics))
    return cells


def label(learner: Learner) -> str:
    name = objectives.name(learner.objective)
    return name if learner.objective == EXACT else f"{name}, G = {learner.samples}"
