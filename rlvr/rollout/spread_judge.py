"""Judging on more nodes than those of the ranks: each of them takes its part of the answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlvr.records import Judge, Problem, Reward
from rlvr.rollout.child import Lost

log = logging.getLogger(__name__)


class SpreadJudge:
    """Judges as `here` does. Of the answers of its rank every node of the job has an equal part."""

    def __init__(self, here: Judge, elsewhere: Sequence[Judge], *, nodes: int) -> None:
        """elsewhere: of nodes without ranks; each may raise Lost. nodes: with ranks, each of which judges its own."""
        self._here, self._elsewhere, self._nodes = here, list(elsewhere), nodes
        self._threads = ThreadPoolExecutor(max(1, len(self._elsewhere)), "judge")

    def __call__(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """In the order of the answers. What a lost node was asked is judged here."""
        turns = self._nodes + len(self._elsewhere)
        sent = [range(self._nodes + number, len(answers), turns) for number in range(len(self._elsewhere))]
        pending = [
            (rows, self._threads.submit(judge, [answers[row] for row in rows]))
            for rows, judge in zip(sent, self._elsewhere, strict=True)
            if rows
        ]
        rewards: dict[int, Reward] = {}
        self._judge_here(answers, [row for row in range(len(answers)) if row % turns < self._nodes], rewards)
        for rows, future in pending:
            try:
                rewards |= zip(rows, future.result(), strict=True)
            except Lost as lost:
                log.warning("answers are judged here that another node was asked to judge: %s", lost)
                self._judge_here(answers, rows, rewards)
        return [rewards[row] for row in range(len(answers))]

    def _judge_here(
        self, answers: Sequence[tuple[Problem, str]], rows: Sequence[int], rewards: dict[int, Reward]
    ) -> None:
        rewards |= zip(rows, self._here([answers[row] for row in rows]), strict=True)
