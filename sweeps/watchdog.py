"""A run whose process lives and does nothing: it is ended, and what its threads were doing stands in its log.

Progress is what the run itself says: a step, a phase, an answer of its engine (heartbeat.json). The process need not be
able to say that it hangs: a lock that is never released, a collective that one rank never joins, a file server that is
gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from rlvr.ledger import layout
from rlvr.ledger.attempt import last_sign, newest_attempt, record_death
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import read_json
from sweeps.verdict import Verdict
from sweeps.worker import tagged

STEPS = 20  # a run is not hung before so many times the longest time between two signs of progress has passed
START = 12  # times the patience, from its process's start to the first step: a base policy built, a large model loaded
LOOK_S = 5.0
STACKS = signal.SIGQUIT  # rlvr/job/log.py: writes down what every thread is doing
STACKS_S = 2.0


class Watchdog:
    """Watches one attempt of a run. minutes: without progress; None: it may take as long as it likes."""

    def __init__(self, run_dir: Path, before: int, minutes: float | None, tag: str) -> None:
        """before: the newest attempt before it. tag: of its processes."""
        self.run_dir, self.before, self.tag = run_dir, before, tag
        self.patience_s = None if minutes is None else 60 * minutes
        self.hung = ""  # why it ended the run
        self._seen: tuple[int, float] | None = None
        self._silent_s, self._looked = 0.0, time.monotonic()

    def ended_it(self) -> bool:
        """Did the run hang? Then its processes are to be killed. To be asked often.

        Its end is on the ledger if it had begun its attempt: the one before is none of ours. `verdict` has it always.
        """
        if self.patience_s is None:
            return False
        look_s = min(LOOK_S, self.patience_s / 4)
        passed, now = time.monotonic() - self._looked, time.monotonic()
        if passed < look_s:
            return False
        self._looked = now
        number = newest_attempt(self.run_dir)
        beat = read_json(layout.heartbeat(layout.attempt(self.run_dir, number))) or {}
        if self._seen != (seen := (number, last_sign(beat))):
            self._seen, self._silent_s = seen, 0.0
            return False
        # Not more than two looks: where the machine, or the job, was suspended, so were we.
        self._silent_s += min(passed, 2 * look_s)
        began = number > self.before and "origin" in beat
        longest = float(beat.get("longest") or 0.0)
        limit_s = max(self.patience_s, STEPS * longest) if began else START * self.patience_s
        if self._silent_s < limit_s:
            return False
        self._write_stacks()
        if number > self.before:
            self._end(number, f"no progress for {self._silent_s:.0f} s in phase {beat.get('phase', 'start')!r}")
        else:
            self.hung = f"no attempt was begun in {self._silent_s:.0f} s: ended"
        return True

    def verdict(self, log: Path) -> Verdict | None:
        """How it ended the run, if it did. log: of the process."""
        return Verdict(Cause.HUNG, f"{self.hung}; see {log}", again=True) if self.hung else None

    def _write_stacks(self) -> None:
        for pid in tagged(self.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS)
        time.sleep(STACKS_S)

    def _end(self, number: int, message: str) -> None:
        log = layout.log(layout.attempt(self.run_dir, number))
        self.hung = f"{message}: ended. What its threads were doing is at the end of {log}"
        record_death(self.run_dir, number, Cause.HUNG, Cause.HUNG.code, self.hung)
