"""The likelihood table: each objective by rollouts per prompt, beside exact maximum likelihood (MaxRL, Fig. 2, 8)."""

import pandas as pd

from analysis.frames.frames import Frames
from analysis.report.cells import BASE, Block, Row, columns, fill
from analysis.report.table import Format, Table, with_notes
from analysis.scores.arm import distinct_names
from analysis.scores.exact_likelihood import EXACT, Learner, LikelihoodComparison, contests

QUESTION = "How near does each objective come to exact maximum likelihood as rollouts per prompt grow?"
NEEDS = "exact likelihood beside another objective, evaluated on problems"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    all_contests = contests(frames)
    if not all_contests:
        return None
    parts = [fill(frames, [_block(contest)], columns([contest.metric], [contest.source])) for contest in all_contests]
    cells = pd.concat(parts, ignore_index=True)
    rates = [{learner.arm.first.knob("lr") for learner in contest.learners} - {None} for contest in all_contests]
    one_rate = "One learning rate for all arms of a block: an objective that stalls here may learn at a larger one."
    notes = (
        "Accuracy at the last evaluation. Cross-entropy learns from the known answer and takes no rollouts.",
        "G: rollouts per prompt. MaxRL at G follows the expansion of log p to order G − 1.",
        *([one_rate] if max(map(len, rates)) < 2 else []),
    )
    shown = tuple(dict.fromkeys(str(c.metric) for c in all_contests))
    ours = Table("exact_likelihood", "Exact likelihood", QUESTION, cells, shown, notes, format=Format(decimals=2))
    return with_notes(ours, frames)


def _block(contest: LikelihoodComparison) -> Block:
    """A row per learner, compared to exact likelihood where a single arm of it ran."""
    names = distinct_names({learner.arm: label(learner) for learner in contest.learners})
    exact = names[contest.exact[0].arm] if len(contest.exact) == 1 else ""
    rows = [
        Row(names[learner.arm], (learner.arm,), against="" if learner.objective == EXACT else exact)
        for learner in contest.learners
    ]
    return Block(contest.name, (Row(BASE, tuple(learner.arm for learner in contest.learners), base=True), *rows))


def label(learner: Learner) -> str:
    return EXACT if learner.objective == EXACT else f"{learner.objective}, G = {learner.samples}"
