"""One attempt: a process that works on a run. Its lock, number, heartbeats, requests to stop, and recorded end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

from rlvr.ledger import layout
from rlvr.ledger import lock as locks
from rlvr.ledger.cause import Cause, cause_of
from rlvr.ledger.files import PASSING_ERRORS, UNWRITABLE_ERRORS, read_json, write_json

HEARTBEAT_S = 1.0
# Of an evaluation, in heartbeats: `rlvr.metrics.shown_scores`. FIRST: the accuracy of the first one.
SCORES, FIRST = ("accuracy", "unparsable", "finished"), "first_accuracy"
HALVINGS = 3
WATCH_S = 5.0  # longer than heartbeats are apart, and than file servers usually cache them
# Environment variables of a rank. STORE: the file through which the ranks of one node find each other. RAY_NETWORK: set
# if its workers are on other nodes, too.
STORE, RAY_NETWORK = "RLVR_STORE", "RLVR_RAY_NETWORK"
ENDS_AT = "RLVR_ENDS_AT"  # environment variable: when the allocation's time is up, in seconds since the epoch
ALONE = "RLVR_ALONE"  # environment variable: "1" in a job of SLURM that has no other run
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)


class Busy(RuntimeError):
    """Raised when another process holds the run or has already finished it: nothing is left to do."""

    cause = Cause.BUSY


NEWER = "a newer attempt owns this run: this one stops without writing"


def newest_attempt(run_dir: Path) -> int:
    """Number of the newest attempt, 0 if there is none. From a listing, which on NFS is fresher than a stat."""
    try:
        names = [entry.name for entry in os.scandir(layout.attempts(run_dir))]
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isdigit()), default=0)


def _busy_error(run_dir: Path) -> Busy:
    number = newest_attempt(run_dir)
    job = read_job(layout.attempt(run_dir, number))
    is_known = "pid" in job and "host" in job
    holder = f"process {job['pid']} on {job['host']} (attempt {number})" if is_known else "another process"
    return Busy(f"run {run_dir.name} is held by {holder}. Wait for it or stop it; the run goes on where it left off.")


def _allocation() -> dict[str, Any]:
    """The number of visible GPUs on all nodes; under SLURM also whether no other run uses them, the node, the
    job's id and how often it has been requeued.
    """
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ranks = os.environ.get("WORLD_SIZE", "1")
    nodes = int(ranks) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    gpus = len([device for device in devices.split(",") if device.strip() not in ("", "-1")])
    node = os.environ.get("SLURMD_NODENAME")
    if not node:
        return {"gpus": gpus * nodes}
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID", "")
    own = gpus > 0 and os.environ.get(ALONE) == "1"
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    return {"gpus": gpus * nodes, "own_gpus": own, "node": node, "slurm_job": job, "restarts": restarts}


class Attempt:
    """An exclusive, numbered attempt at a run. Between `open` and `close` no other process can open the run.

    As a context manager it closes itself on exit, unless it is closed already: after an exception with the cause that
    the exception carries (`cause_of`), after Ctrl-C as preempted.
    """

    def __init__(self, run_dir: Path, number: int, lock: int) -> None:
        self.run_dir, self.number = run_dir, number
        self.path = layout.attempt(run_dir, number)
        self.log_path = layout.log(self.path)
        self.closed: Cause | None = None
        self._lock, self._started = lock, time.monotonic()
        previous_beat = read_heartbeat(layout.attempt(run_dir, number - 1))
        scores = {name: previous_beat.get(name) for name in (*SCORES, FIRST)}
        self._beat: dict[str, Any] = {"step": 0, "steps": 0, "phase": "start", **scores}
        self._beat_lock = threading.Lock()  # guards _beat and the times below
        self._first_step: int | None = None
        self._last_write, self._has_unwritten_beat = float("-inf"), False
        self._last_heartbeat = time.monotonic()

    @classmethod
    def open(cls, run_dir: Path | str, *, ranks: int = 1, **extra_fields: Any) -> Attempt:
        """Lock the run and number the attempt. Raises Busy if another process holds the run, or if it is finished.

        With several ranks, only rank 0 opens the attempt. extra_fields: further fields of job.json.
        """
        run_dir = Path(run_dir)
        lock = locks.lock(layout.lock(run_dir))
        if lock is None:
            raise _busy_error(run_dir)
        try:
            newest = newest_attempt(run_dir)
            end = read_end(layout.attempt(run_dir, newest))
            if end is not None and end.cause is Cause.OK:
                raise Busy(f"run {run_dir.name} is finished already (attempt {newest})")
            if end is None and _works_elsewhere(layout.attempt(run_dir, newest)):
                layout.weak_locks(layout.home_of_run(run_dir)).touch()
                raise _busy_error(run_dir)
            attempt = cls(run_dir, newest + 1, lock)
            try:
                attempt.path.mkdir(parents=True)  # the claim, which holds also where locks do not
            except FileExistsError:
                raise _busy_error(run_dir) from None
            job = {"attempt": attempt.number, "started": time.time(), "ranks": ranks, "host": socket.gethostname()}
            job |= {**locks.process_record(os.getpid()), **_allocation(), **extra_fields}
            write_json(layout.job(attempt.path), job)
        except (Busy, OSError):
            locks.unlock(lock)
            raise
        return attempt

    def add_to_record(self, **fields: Any) -> None:
        """Add what became known after `open` to job.json."""
        write_json(layout.job(self.path), {**(read_json(layout.job(self.path)) or {}), **fields})

    def check_lease(self) -> None:
        """Raises Busy if this attempt may no longer write."""
        if not self.holds_lease():
            raise Busy(NEWER)

    def holds_lease(self) -> bool:
        """Whether this attempt may still write. To be checked before every durable write; costs a few microseconds.

        A lock can be lost without notice (the run was deleted, or a file server gave the lock of an unreachable node
        to another node): then a newer attempt exists, or the lock file is no longer the one that this process holds.
        """
        if self.closed is not None:
            return False
        try:
            held, on_disk = os.fstat(self._lock), layout.lock(self.run_dir).stat()
        except FileNotFoundError:
            return False
        is_same_file = (held.st_dev, held.st_ino) == (on_disk.st_dev, on_disk.st_ino)
        return is_same_file and newest_attempt(self.run_dir) == self.number

    def heartbeat(self, step: int, steps: int, phase: str, **scores: float | None) -> None:
        """Report that `step` of `steps` are done. Written at most once a second, but at once when the phase changes.

        scores: SCORES of an evaluation; None keeps the last one reported, if need be by the previous attempt.
        """
        with self._beat_lock:
            now, previous, self._last_heartbeat = time.time(), self._last_heartbeat, time.monotonic()
            changed = phase != self._beat["phase"]
            if self._first_step is None:
                self._first_step = step
            if step > self._first_step and "origin" not in self._beat:
                # The rate is measured from the end of this attempt's first step: it does not include set-up.
                self._beat["origin"] = {"step": step, "time": now}
            if "origin" in self._beat:
                self._beat["longest"] = max(self._beat.get("longest", 0.0), self._last_heartbeat - previous)
            self._beat |= {"time": now, "step": step, "steps": steps, "phase": phase}
            self._beat |= {name: score for name, score in scores.items() if score is not None}
            if self._beat[FIRST] is None:
                self._beat[FIRST] = self._beat["accuracy"]
            self._has_unwritten_beat = True
            if changed or time.monotonic() - self._last_write >= HEARTBEAT_S:
                self._write_beat()

    def alive(self) -> None:
        """Report that the run still works on the phase of its last heartbeat. Any thread may call this, and often."""
        with self._beat_lock:
            self._beat["alive"] = time.time()
            self._has_unwritten_beat = True
            if time.monotonic() - self._last_write >= HEARTBEAT_S:
                self._write_beat()

    def _write_beat(self) -> None:
        self._last_write = time.monotonic()
        try:
            # Not durable: it is out of date in a second, and an empty file reads as no heartbeat.
            write_json(layout.heartbeat(self.path), self._beat, durable=False)
        except OSError as error:
            if error.errno not in PASSING_ERRORS:  # the next checkpoint reports what does not pass
                raise
        else:
            self._has_unwritten_beat = False

    def close(self, cause: Cause | str, message: str = "", seconds: float | None = None) -> int:
        """Write exit.json, unlock the run, and return the exit code for the process. Later calls change nothing.

        seconds: how long it has taken; None: since it was opened.
        """
        if self.closed is not None:
            return self.closed.code
        cause = Cause(cause)
        if cause is Cause.OK and not self.holds_lease():
            cause, message = Cause.BUSY, f"finished without the lease: {NEWER}"
        self.closed = cause
        try:
            with self._beat_lock:
                if self._has_unwritten_beat:
                    self._write_beat()
            _write_end(self.path, cause, message, time.monotonic() - self._started if seconds is None else seconds)
        finally:
            locks.unlock(self._lock)
        return cause.code

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.closed is None and error is not None:
            cause = Cause.PREEMPTED if isinstance(error, KeyboardInterrupt) else cause_of(error)
            self.close(cause, f"{type(error).__name__}: {error}")
        elif self.closed is None:
            self.close(Cause.ERROR, "the attempt was left without recording how it ended")


def _works_elsewhere(attempt: Path) -> bool:
    """Whether an attempt whose lock is free here works on another host: its heartbeat changes while this one looks.

    Locks then do not hold between hosts. Clocks and process ids of the other host say nothing here.
    """
    job, before = read_job(attempt), read_json(layout.heartbeat(attempt))
    if not before or job.get("host") in (None, socket.gethostname()) or locks.is_alive(job) is not None:
        return False
    time.sleep(WATCH_S)
    return read_json(layout.heartbeat(attempt)) not in (None, before) and read_end(attempt) is None


def read_job(attempt: Path) -> Mapping[str, Any]:
    """The job.json of an attempt; empty if there is none, or if one of its numbers is none, as after a flipped bit."""
    job = read_json(layout.job(attempt)) or {}
    numbers = [job.get(key) or 0 for key in ("attempt", "started", "ranks", "gpus", "pid", "restarts")]
    return job if all(isinstance(number, int | float) and math.isfinite(number) for number in numbers) else {}


def read_heartbeat(attempt: Path) -> Mapping[str, Any]:
    """The heartbeat.json of an attempt; empty if there is none, or if a time, a step or the phase is not of its type,
    as after a flipped bit that leaves valid JSON.
    """
    beat = read_json(layout.heartbeat(attempt)) or {}
    numbers = [beat.get(key, 0) for key in ("step", "steps", "time", "alive", "longest")]
    if "origin" in beat:
        origin = cast("dict[str, Any]", beat["origin"] if isinstance(beat["origin"], dict) else {})
        numbers += [origin.get("step"), origin.get("time"), *(beat.get(key) for key in ("steps", "time"))]
    valid = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    return beat if valid and isinstance(beat.get("phase", ""), str) else {}


def last_heartbeat_time(beat: Mapping[str, Any]) -> float:
    """Time of the last sign of life in a heartbeat, in seconds since the epoch; 0 if it contains none."""
    return max(beat.get("time") or 0.0, beat.get("alive") or 0.0)


def seconds_of_signs(job: Mapping[str, Any], beat: Mapping[str, Any]) -> float:
    """Time from the start of an attempt (in its job.json) to its last heartbeat; 0 if either is not known."""
    started, last = job.get("started"), last_heartbeat_time(beat)
    return max(0.0, last - started) if started and last else 0.0


# --- the end of an attempt


@dataclass(frozen=True)
class End:
    """exit.json: how an attempt ended."""

    cause: Cause
    message: str
    time: float | None  # seconds since the epoch
    seconds: float  # duration of the attempt


def read_end(attempt: Path) -> End | None:
    """The end of an attempt; None if it has no exit.json. A cause that this version does not know reads as ERROR, and
    a duration that is no number as 0.
    """
    content = read_json(layout.end(attempt))
    if content is None:
        return None
    seconds = content.get("seconds")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        seconds = 0.0
    return End(_cause(content), str(content.get("message") or ""), content.get("time"), float(seconds))


def _cause(content: Mapping[str, Any]) -> Cause:
    cause = content.get("cause")
    return Cause(cause) if cause in list(Cause) else Cause.ERROR


def _write_end(attempt: Path, cause: Cause, message: str, seconds: float) -> None:
    end = {"cause": cause.value, "code": cause.code, "time": time.time(), "message": message, "seconds": seconds}
    write_json(layout.end(attempt), end)


def record_missing_end(run_dir: Path, number: int, cause: Cause, message: str, *, ended_earlier: bool = False) -> bool:
    """Write exit.json for an attempt whose process is gone. Returns whether it was written.

    ended_earlier: its process was gone before this one looked, so its time ends with its last heartbeat. An existing
    exit.json is kept. On a full or read-only disk a line on standard error contains what could not be written.
    """
    attempt = layout.attempt(run_dir, number)
    if read_end(attempt) is not None:
        return False
    job, now = read_job(attempt), time.time()
    beat = read_heartbeat(attempt) if ended_earlier else {"time": now}
    try:
        _write_end(attempt, cause, message, seconds_of_signs(job, beat))
    except OSError as error:
        if error.errno not in UNWRITABLE_ERRORS:
            raise
        print_unwritten_end(run_dir, cause, message, error)
        return False
    return True


def print_unwritten_end(run_dir: Path, cause: Cause, message: str, error: OSError) -> None:
    """Print the end of a run that could not be written because the disk is full, or read-only."""
    text = f"{run_dir}: its end, {cause.value}, could not be written: {error.strerror}. {message}"
    print(text, file=sys.stderr, flush=True)


def write_rank_end(run_dir: Path, rank: int, cause: Cause, message: str) -> None:
    """Write the end of a rank other than 0. Rank 0 writes exit.json, but sees only that the other rank is gone."""
    attempt = layout.attempt(run_dir, newest_attempt(run_dir))
    if attempt.is_dir():
        write_json(layout.rank_end(attempt, rank), {"cause": cause.value, "message": f"rank {rank}: {message}"})


def read_rank_end(run_dir: Path, number: int) -> tuple[Cause, str] | None:
    """Cause and message that the lowest rank wrote with `write_rank_end`; None if no rank did."""
    for path in layout.rank_ends(layout.attempt(run_dir, number)):
        if content := read_json(path):
            return _cause(content), str(content.get("message") or "")
    return None


def num_gpu_ooms(run_dir: Path) -> int:
    """Number of attempts that ran out of GPU memory.

    The next attempt halves `trainer.token_budget` that many times, at most HALVINGS times. Except for rounding, this
    does not change what a run computes: the gradient is summed over the same groups.
    """
    ends = [read_end(layout.attempt(run_dir, n)) for n in range(1, newest_attempt(run_dir) + 1)]
    return sum(end is not None and end.cause is Cause.GPU_OOM for end in ends)


# --- requests to stop: through the ledger (to prune a run), or by a signal


def request_prune(run_dir: Path, reason: str) -> None:
    """Request that the newest attempt, on any node, saves after its step and ends as `pruned`. Not later ones."""
    path = layout.prune_request(layout.attempt(run_dir, newest_attempt(run_dir)))
    if path.parent.is_dir() and not path.exists():
        write_json(path, {"reason": reason})


def prune_reason(attempt: Path) -> str:
    """The reason of the request to prune the attempt in this directory; "" if there is none."""
    path = layout.prune_request(attempt)
    return str((read_json(path) or {}).get("reason", "")) if path.exists() else ""


class Stopped(BaseException):
    """Raised by a stop signal in a long part of a run that can be abandoned at any point (`StopFlag.interruptible`)."""


class StopFlag:
    """While entered, a stop signal only sets this flag: the loop finishes its step, saves and exits.

    SLURM is configured to send SIGUSR2 shortly before the time limit. A second Ctrl-C raises KeyboardInterrupt.
    Must be entered in the main thread: Python delivers signals only there.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = signals or STOP_SIGNALS
        self.received: signal.Signals | None = None
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._received_at = 0.0  # by time.monotonic
        self._interruptible = False  # whether an interruptible part is running

    @contextlib.contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """The body is abandoned at a stop signal: Stopped is raised, in the main thread."""
        self._interruptible = True
        try:
            if self.received is not None:
                raise Stopped(self.received.name)
            yield
        finally:
            self._interruptible = False

    def overdue(self, grace_s: float, began: float) -> bool:
        """Whether a part that began at `began` (time.monotonic) has gone on for `grace_s` seconds after a stop signal.

        Any thread may call this.
        """
        return self.received is not None and time.monotonic() - max(began, self._received_at) >= grace_s

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def cause(self) -> Cause:
        """The cause to close the attempt with."""
        return Cause.TIME_LIMIT if self.received == signal.SIGUSR2 else Cause.PREEMPTED

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received == number == signal.SIGINT and not self._interruptible:
            raise KeyboardInterrupt
        if self.received is None:
            self._received_at = time.monotonic()
        self.received = signal.Signals(number)
        if self._interruptible:
            raise Stopped(self.received.name)

    def __enter__(self) -> StopFlag:
        for number in self.signals:
            if number is not signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                self._previous_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            with contextlib.suppress(TypeError):  # None: a handler that was not installed from Python
                signal.signal(number, handler)
        self._previous_handlers.clear()
