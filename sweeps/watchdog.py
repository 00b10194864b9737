"""Detects a run whose process exists but makes no progress. Its processes are killed, after the stacks of their threads
have been written to its log.

Progress is what the run records in heartbeat.json: a step, a phase, an answer of its engine. A hung process need not be
able to report anything: it may wait for a lock that is never released, for a collective that one rank never joins, or
for a file server that is gone.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.attempt import last_heartbeat_time, newest_attempt, read_heartbeat, record_missing_end
from rlvr.ledger.cause import Cause
from sweeps.verdict import RunEnd
from sweeps.worker import tagged

STEPS = 20  # a run is not hung before so many times the longest time between two signs of progress has passed
START = 12  # factor on the patience until the first step: a base policy may be built, a large model loaded
LOOK_S = 5.0  # between two readings of the heartbeat, at most
STACKS = signal.SIGQUIT  # the handler of rlvr/job/log.py writes the stack of every thread
STACKS_S = 2.0  # for the handler to write them


class Watchdog:
    """Watches one attempt of a run."""

    def __init__(self, run_dir: Path, before: int, minutes: float | None, tag: str) -> None:
        """before: the newest attempt before this one. minutes: without progress, after which the run counts as hung;
        None: never. tag: of the run's processes.
        """
        self.run_dir, self.before, self.tag = run_dir, before, tag
        self.patience_s = None if minutes is None else 60 * minutes
        self.hung = ""  # why the run counts as hung; "" if it does not
        self._last_progress: tuple[int, float] | None = None  # (attempt, time of its last sign of progress)
        self._silent_s, self._checked = 0.0, time.monotonic()

    def finds_hung(self) -> bool:
        """Whether the run hangs; the caller then has to kill its processes. To be called often, from one place.

        Records the end of the attempt on the ledger, if this launch has begun one; `verdict` returns it in any case.
        """
        if self.patience_s is None:
            return False
        look_s = min(LOOK_S, self.patience_s / 4)
        passed, now = time.monotonic() - self._checked, time.monotonic()
        if passed < look_s:
            return False
        self._checked = now
        number = newest_attempt(self.run_dir)
        beat = read_heartbeat(layout.attempt(self.run_dir, number))
        progress = (number, last_heartbeat_time(beat))
        if self._last_progress != progress:
            self._last_progress, self._silent_s = progress, 0.0
            return False
        # At most two intervals are counted: a longer gap means that the machine, or the job, was suspended.
        self._silent_s += min(passed, 2 * look_s)
        began = number > self.before and "origin" in beat
        longest = beat.get("longest") or 0.0
        limit_s = max(self.patience_s, STEPS * longest) if began else START * self.patience_s
        if self._silent_s < limit_s:
            return False
        for pid in tagged(self.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS)
        time.sleep(STACKS_S)
        self.hung = f"no attempt was begun in {self._silent_s:.0f} s: ended"
        if number > self.before:
            log = layout.log(layout.attempt(self.run_dir, number))
            silent = f"no progress for {self._silent_s:.0f} s in phase {beat.get('phase', 'start')!r}"
            self.hung = f"{silent}: ended. The stacks of its threads are at the end of {log}"
            record_missing_end(self.run_dir, number, Cause.HUNG, self.hung)
        return True

    def verdict(self, log: Path) -> RunEnd | None:
        """The verdict on a run that hung; None if it did not. log: of its process."""
        return RunEnd(Cause.HUNG, f"{self.hung}; see {log}", again=True) if self.hung else None
