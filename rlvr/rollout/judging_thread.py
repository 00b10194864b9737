"""A thread that judges groups while others are sampled: all that have arrived since its last call, in one batch."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class JudgingThread(Generic[T]):
    """A queue that several threads fill, and the thread that judges what is in it."""

    def __init__(self, judge: Callable[[list[T]], None]) -> None:
        self._judge, self._queue = judge, list[T]()
        self._lock, self._thread = threading.Lock(), ThreadPoolExecutor(1, "judge")
        self._pending: list[Future[None]] = []  # calls that are not done, or have failed

    def put(self, item: T) -> None:
        with self._lock:
            self._queue.append(item)
            self._pending.append(self._thread.submit(self._judge_queued))

    def _judge_queued(self) -> None:
        with self._lock:
            queued, self._queue = self._queue, []
        if queued:  # otherwise the item was judged in an earlier batch
            self._judge(queued)

    @property
    def failure(self) -> BaseException | None:
        """The first exception that judging has raised, if any."""
        with self._lock:
            self._pending = [call for call in self._pending if not call.done() or call.exception() is not None]
            return next((call.exception() for call in self._pending if call.done()), None)

    def close(self) -> None:
        """Wait until everything in the queue is judged, then end the thread."""
        self._thread.shutdown()
