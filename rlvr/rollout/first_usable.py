"""One round of sampling that ends with the groups that a step learns from: the first usable ones, in the order drawn.

Groups are judged as they arrive. Once the first usable ones are known, all requests still running are stopped, as no
step would learn from them. Which groups are used depends only on what was drawn, never on what was fastest, and no
group that is used is still running when the others are stopped. Ranks with different engines publish on a board
which of their own groups are usable.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rlvr.records import Completion, Rollout
from rlvr.rollout.judging_thread import JudgingThread

Judge = Callable[[Sequence[tuple[int, tuple[Completion, ...]]]], list[Rollout]]


class Board(Protocol):
    """A key-value store through which ranks publish verdicts, each at its own pace."""

    def post(self, name: str, value: str) -> None: ...

    def read(self, name: str) -> str | None:
        """The value; None if no rank has posted it yet."""
        ...


class FirstUsable:
    """The groups of one round, judged in a thread, and whether enough have arrived: the `Progress` of an engine.

    Groups are numbered in the order drawn, over all engines: engine e has e, e + engines, ...
    """

    def __init__(
        self,
        wanted: int,
        usable: Callable[[Rollout], bool],
        judge: Judge,
        *,
        engine: int,
        engines: int,
        board: Board | None,
    ) -> None:
        """wanted: number of usable groups. judge: (row among this engine's requests, its samples) pairs → groups."""
        assert board is not None or engines == 1
        self.wanted, self.engine, self.engines = wanted, engine, engines
        self.groups: dict[int, Rollout] = {}  # this engine's, by row
        self._usable, self._judge, self._board = usable, judge, board
        self._lock, self._judging_thread = threading.Lock(), JudgingThread(self._judge_all)
        # _passed: groups without a gap from the first on; _num_usable: the usable ones among them
        self._passed = self._num_usable = 0

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        """Queue all samples of a request for judging."""
        self._judging_thread.put((row, samples))

    def _judge_all(self, answered: list[tuple[int, tuple[Completion, ...]]]) -> None:
        for (row, _), group in zip(answered, self._judge(answered), strict=True):
            self.groups[row] = group
            if self._board is not None:
                self._board.post(str(row * self.engines + self.engine), str(int(self._usable(group))))

    @property
    def enough(self) -> bool:
        """Whether the first usable groups are known. Raises the exception of a failed judge."""
        with self._lock:  # several workers of an engine may call this at once
            if failure := self._judging_thread.failure:
                raise failure
            while self._num_usable < self.wanted:
                verdict = self._verdict(self._passed)
                if verdict is None:
                    break
                self._num_usable += verdict
                self._passed += 1
            return self._num_usable >= self.wanted

    def _verdict(self, number: int) -> bool | None:
        """Whether group `number` is usable; None if it is not judged yet."""
        row, engine = divmod(number, self.engines)
        if engine == self.engine:
            group = self.groups.get(row)
            return None if group is None else self._usable(group)
        assert self._board is not None
        posted = self._board.read(str(number))
        return None if posted is None else posted == "1"

    def close(self) -> list[Rollout]:
        """Wait for the judge. Returns this engine's groups up to the first that is missing."""
        self._judging_thread.close()
        if failure := self._judging_thread.failure:
            raise failure
        count = next(row for row in range(len(self.groups) + 1) if row not in self.groups)
        return [self.groups[row] for row in range(count)]


def up_to(groups: Sequence[Rollout], wanted: int, usable: Callable[[Rollout], bool]) -> list[Rollout]:
    """The groups up to the `wanted`-th usable one; all of them if there are fewer."""
    num_usable = 0
    for number, group in enumerate(groups, 1):
        num_usable += usable(group)
        if num_usable == wanted:
            return list(groups[:number])
    return list(groups)
