"""Signals that ask a run to stop: they raise a flag, and the loop leaves where it can save."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Any

from rlvr.ledger.attempt import Cause

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)


class StopFlag:
    """While entered, a signal to stop only raises this flag: the loop finishes its step, saves and leaves.

    SIGUSR2 is what SLURM is asked to send when time is nearly up. A second Ctrl-C is not swallowed: it raises
    KeyboardInterrupt. Enter it in the main thread: Python delivers signals nowhere else.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = signals or STOP_SIGNALS
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def cause(self) -> Cause:
        """What to close the attempt with."""
        return Cause.TIME_LIMIT if self.received == signal.SIGUSR2 else Cause.PREEMPTED

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

    def __enter__(self) -> StopFlag:
        for each in self.signals:
            self._before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            with contextlib.suppress(TypeError):  # None: a handler that was not installed from Python
                signal.signal(each, before)
        self._before.clear()
