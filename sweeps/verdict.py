"""How a run ended (by the ledger, else its worker's answer or its process's exit status), and how a launch ended."""

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.ledger import layout, lock, terminal
from rlvr.ledger.attempt import (
    HALVINGS,
    Attempt,
    Busy,
    newest_attempt,
    num_gpu_ooms,
    print_unwritten_end,
    read_end,
    read_rank_end,
    record_missing_end,
)
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.files import UNWRITABLE_ERRORS
from sweeps.progress import duration, word


@dataclass(frozen=True)
class RunEnd:
    """Why an attempt ended. again: whether another attempt may succeed; the launch still limits the retries."""

    cause: Cause
    message: str
    again: bool = False


@dataclass
class LaunchOutcome:
    """How the runs of a launch ended, as lists of run ids. Every run of the sweep is in one of the lists."""

    finished: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])  # runs in a state for which `State.failure` is true
    preempted: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])  # finished before this launch
    pruned: list[str] = field(default_factory=list[str])
    queued: list[str] = field(default_factory=list[str])  # not begun when the launch was stopped
    seconds: float = 0.0  # wall time
    busy_s: list[float] = field(default_factory=list[float])  # by worker, its time with runs
    interrupted: bool = False
    signalled: bool = False  # told to stop, if only when all runs had ended: no further wave is wanted
    states: dict[str, State] = field(default_factory=dict[str, State])  # of the failed runs
    messages: dict[str, str] = field(default_factory=dict[str, str])  # why each of them failed

    def add(self, run_id: str, state: State, message: str = "") -> None:
        """Record the last state of a run in this launch."""
        if state.failure:
            self.failed.append(run_id)
            self.states[run_id], self.messages[run_id] = state, message
            return
        lists = {State.FINISHED: self.finished, State.PREEMPTED: self.preempted, State.PRUNED: self.pruned}
        lists.get(state, self.queued).append(run_id)

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return terminal.INTERRUPTED
        return 1 if self.failed or self.preempted or self.queued else 0

    def summary(self) -> str:
        """`11 of 12 runs finished (2 before), 1 failed. 6m10s; 2 workers busy 97% of the time`."""
        done = len(self.finished) + len(self.skipped)
        ended = Counter(self.states[run_id] for run_id in self.failed)
        ended += Counter({State.PRUNED: len(self.pruned)})
        waiting = Counter({State.PREEMPTED: len(self.preempted), State.PLANNED: len(self.queued)})
        text = f"{done} of {done + ended.total() + waiting.total()} runs finished"
        text += f" ({len(self.skipped)} before)" if self.skipped else ""
        counts = (ended + waiting).items()
        text += "".join(f", {count} {word(state, interrupted=self.interrupted)}" for state, count in counts)
        text += ": run the same command again" if waiting.total() else ""
        text += f". {duration(self.seconds)}"
        if not self.seconds or not any(self.busy_s):
            return text
        share = sum(self.busy_s) / len(self.busy_s) / self.seconds
        return f"{text}; {len(self.busy_s)} worker{'s' * (len(self.busy_s) > 1)} busy {share:.0%} of the time"


def verdict_of_answer(run_dir: Path, before: int, answer: Mapping[str, Any]) -> RunEnd:
    """The verdict on a run whose worker has answered. before: the newest attempt when the worker got the run.

    The exit.json of the attempt decides; the answer does only if there is none.
    """
    cause, message = Cause(answer["cause"]), str(answer.get("message") or "")
    if cause is Cause.BUSY:
        return RunEnd(cause, message)
    if (written := _written_end(run_dir, before)) is not None:
        return written
    if cause is Cause.OK:
        return RunEnd(Cause.ERROR, "its worker reported success, but the ledger has no such attempt")
    if cause.goes_on:
        return RunEnd(cause, message, again=True)
    return _write_end(run_dir, before, RunEnd(cause, message))


def verdict_of_exit(
    run_dir: Path, before: int, status: int, *, stopping: bool, log: Path, known: RunEnd | None = None
) -> RunEnd:
    """The verdict on a run whose process ended with `status` (negative: killed by that signal) without an answer. All
    processes of the run have ended.

    known: the verdict of the watchdog. It decides if the ledger has no end, perhaps because the disk is full.
    """
    if (written := _written_end(run_dir, before)) is not None:
        return written
    # A lock is held by another launch: the processes of this one have ended.
    if status == Cause.BUSY.code or lock.lock_is_held(layout.lock(run_dir)):
        return RunEnd(Cause.BUSY, "")
    if known is not None:
        return _write_end(run_dir, before, known)
    newest = newest_attempt(run_dir)
    opened = newest > before
    if opened and (record := read_rank_end(run_dir, newest)):
        cause, message = record
        record_missing_end(run_dir, newest, cause, message)
        return _written_end(run_dir, before) or RunEnd(cause, message)
    if not stopping:
        verdict = RunEnd(Cause.ERROR, f"its process {_status_text(status)}; see {log}", again=opened or status < 0)
        return _write_end(run_dir, before, verdict)
    message = f"stopped before it could save: its process {_status_text(status)}"
    verdict = RunEnd(Cause.PREEMPTED, message, again=True)
    return _write_end(run_dir, before, verdict) if opened else verdict


def _written_end(run_dir: Path, before: int) -> RunEnd | None:
    """The end of the newest attempt on the ledger; None if it has none, or was there before."""
    newest = newest_attempt(run_dir)
    end = read_end(layout.attempt(run_dir, newest)) if newest > before else None
    if end is None:
        return None
    again = end.cause.goes_on or (end.cause is Cause.GPU_OOM and num_gpu_ooms(run_dir) <= HALVINGS)
    return RunEnd(end.cause, end.message, again)


def _write_end(run_dir: Path, before: int, verdict: RunEnd) -> RunEnd:
    """Write an end to the ledger that the run's process could not write: to its attempt or, without one, a new one."""
    newest = newest_attempt(run_dir)
    try:
        if newest > before:
            record_missing_end(run_dir, newest, verdict.cause, verdict.message)
            return verdict
        with Attempt.open(run_dir) as attempt:
            attempt.close(verdict.cause, verdict.message)
    except Busy as busy:
        return RunEnd(Cause.BUSY, str(busy))
    except FileNotFoundError:  # the directory of the run was deleted: the other runs continue
        pass
    except OSError as error:
        if error.errno not in UNWRITABLE_ERRORS:
            raise
        print_unwritten_end(run_dir, verdict.cause, verdict.message, error)
    return verdict


def _status_text(status: int) -> str:
    if status >= 0:
        return f"ended with code {status} and no message"
    name = {number.value: number.name for number in signal.Signals}.get(-status, "?")
    return f"was killed by signal {-status} ({name}{': out of memory?' if name == 'SIGKILL' else ''})"
