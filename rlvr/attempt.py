"""One process at work on one run: its lock, its number, its heartbeats and the way it ended.

How an attempt can end, and the exit code of its process:

| cause         | code | meaning                                            | again by itself?        |
|---------------|------|----------------------------------------------------|-------------------------|
| `ok`          | 0    | the run is finished                                | no need                 |
| `error`       | 1    | an exception, or death without a word              | only after such a death |
| `user_error`  | 2    | bad input (ValueError)                             | no                      |
| `diverged`    | 4    | not-a-number where training cannot go on           | no                      |
| `gpu_oom`     | 5    | out of GPU memory                                  | no                      |
| `host_oom`    | 6    | out of main memory                                 | no                      |
| `node`        | 7    | the machine failed                                 | yes                     |
| `preempted`   | 75   | told to stop; state saved                          | yes                     |
| `time_limit`  | 75   | told that time is nearly up; state saved           | yes                     |
| `busy`        | 73   | no attempt at all: another process holds the run   | when that one has ended |

75 is EX_TEMPFAIL of sysexits.h: a supervisor requeues on it. An attempt whose process is gone and that left no
exit.json is `lost`; whoever reads the ledger finds that out (sweeps/ledger.py), nobody has to write it down.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from rlvr.paths import read_json, write_json

EXIT_CODES = {
    "ok": 0, "error": 1, "user_error": 2, "diverged": 4, "gpu_oom": 5, "host_oom": 6, "node": 7,
    "preempted": 75, "time_limit": 75,
}  # fmt: skip
BUSY = 73
REQUEUE = 75
HEARTBEAT_S = 1.0


class Busy(RuntimeError):
    """Another process holds the run."""


class Diverged(ArithmeticError):
    """Training met a number from which it cannot go on. Say which quantity and at which step."""


def cause_of(error: BaseException) -> str:
    """The exit cause that an exception stands for. torch's out-of-memory error is known by name: no torch here."""
    if any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__):
        return "gpu_oom"
    causes = ((MemoryError, "host_oom"), (Diverged, "diverged"), (ValueError, "user_error"))
    return next((cause for cls, cause in causes if isinstance(error, cls)), "error")


# --- who is alive ------------------------------------------------------------------------------------------------------


def _machine() -> dict[str, str]:
    """What must agree before a process number means the same process: this boot, this process namespace."""
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "namespace": str(Path("/proc/self/ns/pid").readlink()),
        }
    except OSError:  # not Linux: locks alone tell who is alive
        return {"boot": "", "namespace": ""}


def _process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None if there is none, or only a zombie. Tells reused numbers apart."""
    try:
        # The name in parentheses may hold spaces and parentheses itself: fields count from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(job: Mapping[str, Any]) -> bool | None:
    """Does the process of a job.json still run? None: it was started elsewhere, it cannot be told from here."""
    machine = _machine()
    if not machine["boot"] or any(job.get(key) != value for key, value in machine.items()):
        return None
    return job.get("process_start") is not None and _process_start(int(job["pid"])) == job["process_start"]


def lock_is_held(path: Path) -> bool | None:
    """Does any process hold this lock? None where the file system cannot say. Takes the lock for an instant."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


# A flock belongs to the open file, which forked children share: a verifier's worker that outlives a killed trainer
# would keep the run locked. So children drop their copy. (Those that exec lose it anyway.)
_held: set[int] = set()


def _drop_inherited_locks() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_drop_inherited_locks)


def _lock(path: Path, patience_s: float = 0.5) -> int | None:
    """File descriptor that holds the lock; None if another process does. The patience outlasts `lock_is_held`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
        else:
            _held.add(fd)
            return fd


def newest_attempt(run_dir: Path) -> int:
    """Number of the newest attempt, 0 if there is none. Lists the directory: on NFS a listing is fresher than a stat."""
    try:
        return max((int(name) for name in os.listdir(run_dir / "attempts") if name.isdigit()), default=0)  # noqa: PTH208
    except FileNotFoundError:
        return 0


def _busy(run_dir: Path) -> Busy:
    number = newest_attempt(run_dir)
    job = read_json(run_dir / "attempts" / str(number) / "job.json")
    who = f"process {job['pid']} on {job['host']} (attempt {number})" if job else "another process"
    return Busy(f"run {run_dir.name} is held by {who}. Wait for it or stop it; the run goes on where it left off.")


# --- the attempt -------------------------------------------------------------------------------------------------------


class Attempt:
    """A numbered claim on a run. Between `open` and `close` no other process can open the run.

    As a context manager: an exception on the way out closes it with that exception's cause.
    """

    def __init__(self, run_dir: Path, number: int, lock: int) -> None:
        self.run_dir, self.number = run_dir, number
        self.path = run_dir / "attempts" / str(number)
        self.log_path = self.path / "log.txt"
        self.closed: str | None = None  # the cause
        self._lock, self._pid, self._started = lock, os.getpid(), time.monotonic()
        self._beat: dict[str, Any] = {"step": 0, "steps": 0, "phase": "start", "accuracy": None}
        self._first_step: int | None = None
        self._written, self._pending = float("-inf"), False

    @classmethod
    def open(cls, run_dir: Path | str, *, ranks: int = 1) -> Attempt:
        """Take the run and number the attempt. Raises Busy, naming the holder, if another process has it.

        With several ranks the first one opens the attempt, alone.
        """
        run_dir = Path(run_dir)
        lock = _lock(run_dir / "lock")
        if lock is None:
            raise _busy(run_dir)
        number = newest_attempt(run_dir) + 1
        attempt = cls(run_dir, number, lock)
        attempt.path.mkdir(parents=True)  # the claim: fails if the number is taken
        pid = os.getpid()
        job = {"attempt": number, "pid": pid, "host": socket.gethostname(), "started": time.time(), "ranks": ranks}
        write_json(attempt.path / "job.json", {**job, "process_start": _process_start(pid), **_machine()})
        return attempt

    def holds_lease(self) -> bool:
        """May this attempt still write? Ask before every durable write; costs some microseconds.

        A lock can be lost without notice (the run was deleted, or a file server gave the lock of an unreachable node
        to another one): then a newer attempt exists, or the lock file is no longer the one that is held.
        """
        if self.closed is not None:
            return False
        try:
            mine, there = os.fstat(self._lock), os.stat(self.run_dir / "lock")
        except FileNotFoundError:
            return False
        same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        return same and newest_attempt(self.run_dir) == self.number

    def heartbeat(self, step: int, steps: int, phase: str, accuracy: float | None = None) -> None:
        """Say where the run stands: `step` of `steps` done. Written once a second at most, a change of phase at once.

        accuracy None keeps the one said before.
        """
        now = time.time()
        changed = phase != self._beat["phase"]
        if self._first_step is None:
            self._first_step = step
        if step > self._first_step and "origin" not in self._beat:
            # The pace is measured from the end of the first step of this attempt: set-up is not part of it.
            self._beat["origin"] = {"step": step, "time": now}
        self._beat |= {"time": now, "step": step, "steps": steps, "phase": phase}
        if accuracy is not None:
            self._beat["accuracy"] = accuracy
        self._pending = True
        if changed or time.monotonic() - self._written >= HEARTBEAT_S:
            self._write_beat()

    def _write_beat(self) -> None:
        # Not durable: it is out of date in a second, and an empty one reads as none.
        write_json(self.path / "heartbeat.json", self._beat, durable=False)
        self._written, self._pending = time.monotonic(), False

    def close(self, cause: str, code: int | None = None, message: str = "") -> int:
        """Write how it ended, give the run back, return the exit code for the process. The first verdict stands."""
        if self.closed is not None:
            return EXIT_CODES[self.closed] if code is None else code
        assert cause in EXIT_CODES, f"{cause} is not one of {sorted(EXIT_CODES)}"
        if cause == "ok" and not self.holds_lease():
            cause, code, message = "error", None, "finished without the lease: a newer attempt owns the run"
        code = EXIT_CODES[cause] if code is None else code
        self.closed = cause
        seconds = time.monotonic() - self._started
        try:
            if self._pending:
                self._write_beat()
            _write_exit(self.path, cause, code, message, seconds)
        finally:
            if os.getpid() == self._pid:  # a forked child has dropped its copy
                _held.discard(self._lock)
                os.close(self._lock)
        return code

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.closed is None and error is not None:
            self.close(cause_of(error), None, f"{type(error).__name__}: {error}")
        elif self.closed is None:
            self.close("error", None, "the attempt was left without a verdict")


def _write_exit(path: Path, cause: str, code: int, message: str, seconds: float) -> None:
    exit = {"cause": cause, "code": code, "time": time.time(), "message": message, "seconds": seconds}
    write_json(path / "exit.json", exit)


def record_death(run_dir: Path, number: int, cause: str, code: int, message: str) -> bool:
    """Write the exit of an attempt whose process is dead and left none. False if it had left one: its word stands."""
    path = run_dir / "attempts" / str(number)
    if read_json(path / "exit.json") is not None:
        return False
    job = read_json(path / "job.json") or {}
    _write_exit(path, cause, code, message, max(0.0, time.time() - job.get("started", time.time())))
    return True


# --- being told to stop ------------------------------------------------------------------------------------------------

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
    def cause(self) -> str:
        """Exit cause to close the attempt with."""
        return "time_limit" if self.received == signal.SIGUSR2 else "preempted"

    def _receive(self, number: int, frame: FrameType | None) -> None:
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
