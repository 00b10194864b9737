"""One round of sampling that ends with the groups that a step learns from: the first usable ones, in the order drawn.

Groups are judged as they come, and once the first usable ones are known, what still runs is stopped: it would not be
learned from. Which groups are used is a function of what was drawn, never of what was fastest, and nothing that is used
still runs when the rest is stopped. The ranks that ask several engines tell one another what is usable, each of its own
groups; who asks no engine, because it shares one that another asks, has nothing to tell and nothing to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rlvr.records import Completion, Rollout
from rlvr.rollout.judging import Judging

Judge = Callable[[Sequence[tuple[int, tuple[Completion, ...]]]], list[Rollout]]


class Board(Protocol):
    """What ranks tell one another, while each is at its own work."""

    def post(self, name: str, value: str) -> None: ...

    def read(self, name: str) -> str | None:
        """None: nobody has posted it yet."""
        ...


class FirstUsable:
    """The groups of one round, and whether enough of them are there: `Progress` of an engine, judged in a thread.

    Groups are numbered in the order drawn, over all engines: engine e has e, e + engines, ...
    """

    def __init__(
        self,
        wanted: int,
        usable: Callable[[Rollout], bool],
        judge: Judge,
        *,
        engine: int = 0,
        engines: int = 1,
        board: Board | None = None,
    ) -> None:
        """wanted: usable groups. judge: (row among this engine's requests, its samples) → groups."""
        assert board is not None or engines == 1
        self.wanted, self.engine, self.engines = wanted, engine, engines
        self.groups: dict[int, Rollout] = {}  # this engine's, by row
        self._usable, self._judge, self._board = usable, judge, board
        self._lock, self._judging = threading.Lock(), Judging(self._judge_all)
        self._passed = self._num_usable = 0  # groups without a gap from the first on, and the usable ones of them

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        """All samples of a request."""
        self._judging.put((row, samples))

    def _judge_all(self, answered: list[tuple[int, tuple[Completion, ...]]]) -> None:
        for (row, _), group in zip(answered, self._judge(answered), strict=True):
            self.groups[row] = group
            if self._board is not None:
                self._board.post(str(row * self.engines + self.engine), str(int(self._usable(group))))

    @property
    def enough(self) -> bool:
        """Whether the first usable groups are known. Raises what went wrong in judging."""
        with self._lock:  # workers of an engine ask at the same time
            if failure := self._judging.failure:
                raise failure
            while self._num_usable < self.wanted and (verdict := self._verdict(self._passed)) is not None:
                self._num_usable += verdict
                self._passed += 1
            return self._num_usable >= self.wanted

    def _verdict(self, number: int) -> bool | None:
        row, engine = divmod(number, self.engines)
        if engine == self.engine:
            group = self.groups.get(row)
            return None if group is None else self._usable(group)
        assert self._board is not None
        said = self._board.read(str(number))
        return None if said is None else said == "1"

    def close(self) -> list[Rollout]:
        """This engine's groups that have none missing before them, once all that came are judged."""
        self._judging.close()
        if failure := self._judging.failure:
            raise failure
        count = next(row for row in range(len(self.groups) + 1) if row not in self.groups)
        return [self.groups[row] for row in range(count)]


def up_to(groups: Sequence[Rollout], wanted: int, usable: Callable[[Rollout], bool]) -> list[Rollout]:
    """The groups up to the `wanted`-th usable one; all of them if there are fewer."""
    found = 0
    for number, group in enumerate(groups, 1):
        found += usable(group)
        if found == wanted:
            return list(groups[:number])
    return list(groups)
