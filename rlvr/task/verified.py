"""What tasks share whose problems are rows of data, and those whose answers are judged in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.records import Problem, Reward, Split, binary
from rlvr.task.verify.pool import Pool


class Loaded:
    """All splits in memory."""

    def __init__(self, problems: Mapping[Split, Sequence[Problem]]) -> None:
        self._problems = problems

    def size(self, split: Split) -> int | None:
        return len(self._problems[split])

    def problem(self, split: Split, index: int) -> Problem:
        return self._problems[split][index]

    def close(self) -> None:
        """Nothing to stop."""


class Verified(Loaded):
    """All splits in memory, and the pool that judges."""

    def __init__(self, problems: Mapping[Split, Sequence[Problem]], pool: Pool) -> None:
        super().__init__(problems)
        self._pool = pool

    def judge(self, requests: Sequence[Mapping[str, Any] | None]) -> list[Reward]:
        """1 where the pool finds an answer correct, else 0, with the reason; None: there is no answer to judge."""
        outcomes = [reply["outcome"] for reply in self.replies(requests)]
        return [binary(outcome) for outcome in outcomes]

    def replies(self, requests: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
        """What the pool says of each request, in order; None: there is no answer to judge, which is unparsable."""
        asked = self._pool.ask([request for request in requests if request is not None])
        judged = iter(asked)
        return [{"outcome": "unparsable"} if request is None else next(judged) for request in requests]

    def close(self) -> None:
        self._pool.close()
