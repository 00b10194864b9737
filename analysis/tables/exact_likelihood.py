"""The likelihood table: each objective by rollouts per prompt, beside exact maximum likelihood (MaxRL, Fig. 2, 8)."""

from __future__ import annotations

import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.layout import BASE, Block, Row, columns, fill
from analysis.report.table import Format, Table, with_notes
from analysis.scores import objective
from analysis.scores.arm import told_apart
from analysis.scores.exact_likelihood import EXACT, Contest, Learner, contests

QUESTION = "How near does each objective come to exact maximum likelihood as rollouts per prompt grow?"


def table(frames: Frames) -> Table | None:
    """None unless exact likelihood ran beside another objective."""
    found = contests(frames)
    if not found:
        return None
    cells = pd.concat([fill(frames, [_block(c)], columns([c.metric], [c.source])) for c in found], ignore_index=True)
    notes = (
        "Accuracy at the last evaluation. Cross-entropy learns from the known answer and takes no rollouts.",
        "G: rollouts per prompt. MaxRL at G follows the expansion of log p to order G − 1.",
        "One learning rate for all arms of a block: an objective that stalls here may learn at a larger one.",
    )
    shown = tuple(dict.fromkeys(str(c.metric) for c in found))
    ours = Table("exact_likelihood", "Exact likelihood", QUESTION, cells, shown, notes, format=Format(decimals=2))
    return with_notes(ours, frames)


def _block(contest: Contest) -> Block:
    """Against exact likelihood, where one arm of it ran."""
    names = told_apart({x.arm: label(x) for x in contest.learners})
    exact = names[contest.exact[0].arm] if len(contest.exact) == 1 else ""
    rows = [Row(names[x.arm], (x.arm,), against="" if x.objective == EXACT else exact) for x in contest.learners]
    return Block(contest.name, (Row(BASE, tuple(x.arm for x in contest.learners), base=True), *rows))


def label(learner: Learner) -> str:
    name = objective.name(learner.objective)
    return name if learner.objective == EXACT else f"{name}, G = {learner.samples}"
