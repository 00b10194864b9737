"""Judging on all nodes of a job: nodes without ranks judge a part of the answers, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlvr.records import Judge, Problem, Reward
from rlvr.rollout.child import ProcessLost

log = logging.getLogger(__name__)


class SpreadJudge:
    """Judges as `local` does. The answers of a rank are divided equally among the nodes of the job."""

    def __init__(self, local: Judge, remote: Sequence[Judge], *, nodes: int) -> None:
        """local: the judge of this node. remote: the judges of nodes without ranks; each may raise ProcessLost. nodes:
        number of nodes with ranks, each of which judges the answers of its own ranks.
        """
        self._local, self._remote, self._nodes = local, list(remote), nodes
        self._threads = ThreadPoolExecutor(max(1, len(self._remote)), "judge")

    def __call__(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """The rewards, in the order of the answers. Answers sent to a node that was lost are judged locally."""
        turns = self._nodes + len(self._remote)
        sent = [range(self._nodes + number, len(answers), turns) for number in range(len(self._remote))]
        pending = [
            (rows, self._threads.submit(judge, [answers[row] for row in rows]))
            for rows, judge in zip(sent, self._remote, strict=True)
            if rows
        ]
        rewards: dict[int, Reward] = {}
        self._judge_locally(answers, [row for row in range(len(answers)) if row % turns < self._nodes], rewards)
        for rows, future in pending:
            try:
                rewards |= zip(rows, future.result(), strict=True)
            except ProcessLost as lost:
                log.warning("the answers sent to another node are judged on this node: %s", lost)
                self._judge_locally(answers, rows, rewards)
        return [rewards[row] for row in range(len(answers))]

    def _judge_locally(
        self, answers: Sequence[tuple[Problem, str]], rows: Sequence[int], rewards: dict[int, Reward]
    ) -> None:
        rewards |= zip(rows, self._local([answers[row] for row in rows]), strict=True)
