"""Groups are judged while others are sampled: in a thread, all that have come meanwhile at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Judging(Generic[T]):
    """What comes, from several threads, and the thread that judges it."""

    def __init__(self, judge: Callable[[list[T]], None]) -> None:
        self._judge, self._queue = judge, list[T]()
        self._lock, self._thread = threading.Lock(), ThreadPoolExecutor(1, "judge")
        self._work: list[Future[None]] = []  # what is not done, or failed

    def put(self, one: T) -> None:
        with self._lock:
            self._queue.append(one)
            self._work.append(self._thread.submit(self._judge_queued))

    def _judge_queued(self) -> None:
        with self._lock:
            queued, self._queue = self._queue, []
        if queued:  # else it was judged together with an earlier one
            self._judge(queued)

    @property
    def failure(self) -> BaseException | None:
        """What went wrong first, if something did."""
        with self._lock:
            self._work = [each for each in self._work if not each.done() or each.exception() is not None]
            return next((each.exception() for each in self._work if each.done()), None)

    def close(self) -> None:
        """Once all that came is judged."""
        self._thread.shutdown()
