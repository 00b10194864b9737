"""One process at work on one run: its lock, its number, its heartbeats, what it is asked, and the way it ended."""

from __future__ import annotations

import contextlib
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
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger import lock as locks
from rlvr.ledger.cause import Cause, cause_of
from rlvr.ledger.files import FULL, read_json, write_json

HEARTBEAT_S = 1.0
HALVINGS = 3
# In the environment of a rank: the file in which those of one node meet; that its workers are on other nodes, too.
STORE, RAY_NETWORK = "RLVR_STORE", "RLVR_RAY_NETWORK"
ENDS_AT = "RLVR_ENDS_AT"  # environment variable: when the allocation's time is up, in seconds since the epoch
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)


class Busy(RuntimeError):
    """Another process holds the run, or has just finished it: there is nothing to do here."""


def newest_attempt(run_dir: Path) -> int:
    """Number of the newest attempt, 0 if there is none. Lists the directory: on NFS that is fresher than a stat."""
    try:
        return max((int(e.name) for e in os.scandir(layout.attempts(run_dir)) if e.name.isdigit()), default=0)
    except FileNotFoundError:
        return 0


def _busy(run_dir: Path) -> Busy:
    number = newest_attempt(run_dir)
    job = read_json(layout.job(layout.attempt(run_dir, number)))
    who = f"process {job['pid']} on {job['host']} (attempt {number})" if job else "another process"
    return Busy(f"run {run_dir.name} is held by {who}. Wait for it or stop it; the run goes on where it left off.")


def _job(number: int, ranks: int, about: Mapping[str, Any]) -> dict[str, Any]:
    who = {**locks.known_as(os.getpid()), "host": socket.gethostname()}
    return {"attempt": number, "started": time.time(), "ranks": ranks, **who, **_allocation(), **about}


def _allocation() -> dict[str, Any]:
    """What SLURM gave: the node's name, the job's number, GPUs on all nodes. Elsewhere the GPUs that are visible."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ranks = os.environ.get("WORLD_SIZE", "1")
    nodes = int(ranks) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    gpus = len([each for each in devices.split(",") if each.strip() not in ("", "-1")])
    node = os.environ.get("SLURMD_NODENAME")
    if not node:
        return {"gpus": gpus * nodes}
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID", "")
    return {"gpus": gpus * nodes, "node": node, "slurm_job": job}


class Attempt:
    """A numbered claim on a run. Between `open` and `close` no other process can open the run.

    As a context manager it is closed on the way out if it is not yet: an exception is an error, Ctrl-C a preemption.
    """

    def __init__(self, run_dir: Path, number: int, lock: int) -> None:
        self.run_dir, self.number = run_dir, number
        self.path = layout.attempt(run_dir, number)
        self.log_path = layout.log(self.path)
        self.closed: Cause | None = None
        self._lock, self._started = lock, time.monotonic()
        before = read_json(layout.heartbeat(layout.attempt(run_dir, number - 1))) or {}
        self._beat: dict[str, Any] = {"step": 0, "steps": 0, "phase": "start", "accuracy": before.get("accuracy")}
        self._first_step: int | None = None
        self._written, self._pending = float("-inf"), False
        self._beaten = time.monotonic()
        self._beating = threading.Lock()

    @classmethod
    def open(cls, run_dir: Path | str, *, ranks: int = 1, **about: Any) -> Attempt:
        """Take the run and number the attempt. Raises Busy, naming the holder, if another process has it or it is done.

        With several ranks the first one opens the attempt, alone. about: what else job.json is to say of it.
        """
        run_dir = Path(run_dir)
        lock = locks.lock(layout.lock(run_dir))
        if lock is None:
            raise _busy(run_dir)
        try:
            newest = newest_attempt(run_dir)
            end = read_end(layout.attempt(run_dir, newest))
            if end is not None and end.cause is Cause.OK:
                raise Busy(f"run {run_dir.name} is finished already (attempt {newest})")
            attempt = cls(run_dir, newest + 1, lock)
            attempt.path.mkdir(parents=True)  # the claim: fails if the number is taken
            write_json(layout.job(attempt.path), _job(attempt.number, ranks, about))
        except (Busy, OSError):
            locks.unlock(lock)
            raise
        return attempt

    def holds_lease(self) -> bool:
        """May this attempt still write? Ask before every durable write; costs some microseconds.

        A lock can be lost without notice (the run was deleted, or a file server gave the lock of an unreachable node
        to another one): then a newer attempt exists, or the lock file is no longer the one that is held.
        """
        if self.closed is not None:
            return False
        try:
            mine, there = os.fstat(self._lock), layout.lock(self.run_dir).stat()
        except FileNotFoundError:
            return False
        same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        return same and newest_attempt(self.run_dir) == self.number

    def heartbeat(self, step: int, steps: int, phase: str, accuracy: float | None = None) -> None:
        """Say where the run stands: `step` of `steps` done. Written once a second at most, a change of phase at once.

        accuracy None keeps the one said before, by the attempt before if need be.
        """
        with self._beating:
            now, before, self._beaten = time.time(), self._beaten, time.monotonic()
            changed = phase != self._beat["phase"]
            if self._first_step is None:
                self._first_step = step
            if step > self._first_step and "origin" not in self._beat:
                # The pace is measured from the end of the first step of this attempt: set-up is not part of it.
                self._beat["origin"] = {"step": step, "time": now}
            if "origin" in self._beat:
                self._beat["longest"] = max(self._beat.get("longest", 0.0), self._beaten - before)
            self._beat |= {"time": now, "step": step, "steps": steps, "phase": phase}
            if accuracy is not None:
                self._beat["accuracy"] = accuracy
            self._pending = True
            if changed or time.monotonic() - self._written >= HEARTBEAT_S:
                self._write_beat()

    def alive(self) -> None:
        """Say that the run still works at what its last heartbeat said. Any thread may, as often as it likes."""
        with self._beating:
            self._beat["alive"] = time.time()
            self._pending = True
            if time.monotonic() - self._written >= HEARTBEAT_S:
                self._write_beat()

    def _write_beat(self) -> None:
        self._written = time.monotonic()
        try:
            # Not durable: it is out of date in a second, and an empty one reads as none.
            write_json(layout.heartbeat(self.path), self._beat, durable=False)
        except OSError as error:
            if error.errno not in FULL:  # of a full disk the next checkpoint tells
                raise
        else:
            self._pending = False

    def close(self, cause: Cause | str, message: str = "") -> int:
        """Write how it ended, give the run back, return the exit code for the process. The first end stands."""
        if self.closed is not None:
            return self.closed.code
        cause = Cause(cause)
        if cause is Cause.OK and not self.holds_lease():
            cause, message = Cause.ERROR, "finished without the lease: a newer attempt owns the run"
        self.closed = cause
        try:
            with self._beating:
                if self._pending:
                    self._write_beat()
            _write_end(self.path, cause, cause.code, message, time.monotonic() - self._started)
        finally:
            locks.unlock(self._lock)
        return cause.code

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.closed is None and error is not None:
            stopped = isinstance(error, KeyboardInterrupt)
            self.close(Cause.PREEMPTED if stopped else cause_of(error), f"{type(error).__name__}: {error}")
        elif self.closed is None:
            self.close(Cause.ERROR, "the attempt was left without a verdict")


def last_sign(beat: Mapping[str, Any]) -> float:
    """When the run of this heartbeat.json last said that it works, in seconds since the epoch; 0: never."""
    return max(float(beat.get("time") or 0.0), float(beat.get("alive") or 0.0))


# --- how it ended


@dataclass(frozen=True)
class End:
    """exit.json: how an attempt ended."""

    cause: Cause
    message: str
    time: float | None  # seconds since the epoch
    seconds: float  # that it took


def read_end(attempt: Path) -> End | None:
    """None of an attempt that has left no end. A cause that this version does not know is an error."""
    content = read_json(layout.end(attempt))
    if content is None:
        return None
    cause = content.get("cause")
    return End(
        Cause(cause) if cause in set(Cause) else Cause.ERROR,
        str(content.get("message") or ""),
        content.get("time"),
        float(content.get("seconds") or 0),
    )


def _write_end(attempt: Path, cause: Cause, code: int, message: str, seconds: float) -> None:
    end = {"cause": cause.value, "code": code, "time": time.time(), "message": message, "seconds": seconds}
    write_json(layout.end(attempt), end)


def record_death(run_dir: Path, number: int, cause: Cause, code: int, message: str) -> bool:
    """Write the end of an attempt whose process is dead and left none. False if it had left one: that stands.

    False, too, on a full disk: a line says what could not be written, and who called goes on with what it knows.
    """
    attempt = layout.attempt(run_dir, number)
    if read_end(attempt) is not None:
        return False
    job = read_json(layout.job(attempt)) or {}
    try:
        _write_end(attempt, cause, code, message, max(0.0, time.time() - job.get("started", time.time())))
    except OSError as error:
        if error.errno not in FULL:
            raise
        say_unwritten(run_dir, cause, message, error)
        return False
    return True


def say_unwritten(run_dir: Path, cause: Cause, message: str, error: OSError) -> None:
    """Say how a run ended that its attempt cannot: the disk is full."""
    text = f"{run_dir}: its end, {cause.value}, could not be written: {error.strerror}. {message}"
    print(text, file=sys.stderr, flush=True)


def record_rank(run_dir: Path, rank: int, cause: Cause, message: str) -> None:
    """What another rank than the first, which writes exit.json, died of: the first sees only that it is gone."""
    attempt = layout.attempt(run_dir, newest_attempt(run_dir))
    if attempt.is_dir():
        write_json(layout.rank_end(attempt, rank), {"cause": cause.value, "message": f"rank {rank}: {message}"})


def rank_record(run_dir: Path, number: int) -> tuple[Cause, str] | None:
    """Cause and message of a rank of this attempt that wrote them down, the lowest one's."""
    for path in layout.rank_ends(layout.attempt(run_dir, number)):
        if content := read_json(path):
            return Cause(content["cause"]), str(content["message"])
    return None


def gpu_ooms(run_dir: Path) -> int:
    """Attempts that ran out of GPU memory. The next one halves `trainer.token_budget` so often, at most HALVINGS times.

    Micro-batches have no part in what a run computes, but for rounding: the gradient is summed over the same groups.
    """
    ends = [read_end(layout.attempt(run_dir, n)) for n in range(1, newest_attempt(run_dir) + 1)]
    return sum(end is not None and end.cause is Cause.GPU_OOM for end in ends)


# --- what it is asked: to stop early, through the ledger, or to stop, by a signal


def ask_to_prune(run_dir: Path, reason: str) -> None:
    """The newest attempt saves after its step, on whatever node, and ends as `pruned`. A later one is asked again."""
    path = layout.prune_request(layout.attempt(run_dir, newest_attempt(run_dir)))
    if path.parent.is_dir() and not path.exists():
        write_json(path, {"reason": reason})


def asked_to_prune(attempt: Path) -> str:
    """Why this attempt (its directory) was asked to stop; "" if it was not."""
    path = layout.prune_request(attempt)
    return str((read_json(path) or {}).get("reason", "")) if path.exists() else ""


class Stopped(BaseException):
    """A signal to stop came in a part of a run that takes long and leaves nothing half done (`StopFlag`)."""


class StopFlag:
    """While entered, a signal to stop only raises this flag: the loop finishes its step, saves and leaves.

    SIGUSR2 is what SLURM is asked to send when time is nearly up. A second Ctrl-C is not swallowed: it raises
    KeyboardInterrupt. Enter it in the main thread: Python delivers signals nowhere else.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = signals or STOP_SIGNALS
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._grace_s: float | None = None  # of the part that may be interrupted now
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def interruptible(self, grace_s: float = 0.0) -> Generator[None, None, None]:
        """What is done in here is given up `grace_s` seconds after a signal: Stopped is raised, in the main thread."""
        self._grace_s = grace_s
        try:
            if self.received is not None:
                self._interrupt(self.received)
            yield
        finally:
            self._grace_s = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _interrupt(self, received: signal.Signals) -> None:
        if not self._grace_s:
            raise Stopped(received.name)
        if self._timer is None:
            self._timer = threading.Timer(self._grace_s, self._grace_is_over, [received])
            self._timer.daemon = True
            self._timer.start()

    def _grace_is_over(self, received: signal.Signals) -> None:
        if self._grace_s is not None:
            self._grace_s = 0.0
            os.kill(os.getpid(), received)  # Python runs its handler in the main thread

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def cause(self) -> Cause:
        """What to close the attempt with."""
        return Cause.TIME_LIMIT if self.received == signal.SIGUSR2 else Cause.PREEMPTED

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received == number == signal.SIGINT and self._grace_s is None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        if self._grace_s is not None:
            self._interrupt(self.received)

    def __enter__(self) -> StopFlag:
        for each in self.signals:
            self._before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            with contextlib.suppress(TypeError):  # None: a handler that was not installed from Python
                signal.signal(each, before)
        self._before.clear()
