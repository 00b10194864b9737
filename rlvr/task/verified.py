"""Base classes of tasks whose problems are rows of data, and of those whose answers are judged in child processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.records import Problem, Reward, Split, binary
from rlvr.task.verify.pool import Pool


class Loaded:
    """A task with all splits in memory."""

    def __init__(self, problems: Mapping[Split, Sequence[Problem]]) -> None:
        self._problems = problems

    def size(self, split: Split) -> int | None:
        return len(self._problems[split])

    def problem(self, split: Split, index: int) -> Problem:
        return self._problems[split][index]

    def close(self) -> None:
        """Nothing to stop."""


class Verified(Loaded):
    """A task with all splits in memory and a pool of processes that judge answers."""

    def __init__(self, problems: Mapping[Split, Sequence[Problem]], pool: Pool) -> None:
        super().__init__(problems)
        self._pool = pool

    def judge(self, requests: Sequence[Mapping[str, Any] | None]) -> list[Reward]:
        """1 for each answer that the pool judges correct, else 0, with the outcome. None: no answer, `unparsable`."""
        return [binary(reply["outcome"]) for reply in self.replies(requests)]

    def replies(self, requests: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
        """The pool's reply to each request, in order. None: no answer, with the outcome `unparsable`."""
        replies = iter(self._pool.ask([request for request in requests if request is not None]))
        return [{"outcome": "unparsable"} if request is None else next(replies) for request in requests]

    def close(self) -> None:
        self._pool.close()
