"""One process at work on one run: its lock, its number, its heartbeats and the way it ended.

How an attempt can end, and the exit code of its process:

| cause         | code | meaning                                            | again by itself?        |
|---------------|------|----------------------------------------------------|-------------------------|
| `ok`          | 0    | the run is finished                                | no need                 |
| `error`       | 1    | an exception, or death without a word              | only after such a death |
| `user_error`  | 2    | bad input (ValueError)                             | no                      |
| `pruned`      | 3    | told to stop early, others are better; state saved | only when asked         |
| `diverged`    | 4    | not-a-number, entropy collapse, KL blow-up         | no: it is a result      |
| `gpu_oom`     | 5    | out of GPU memory                                  | with half the tokens    |
| `host_oom`    | 6    | out of main memory                                 | no                      |
| `node`        | 7    | the machine failed                                 | yes                     |
| `preempted`   | 75   | told to stop; state saved                          | yes                     |
| `time_limit`  | 75   | told that time is nearly up; state saved           | yes                     |
| `busy`        | 73   | no attempt at all: another process holds the run   | when that one has ended |

After `gpu_oom` a micro-batch holds half as many tokens, three times at most: `gpu_ooms`.
75 is EX_TEMPFAIL of sysexits.h: a supervisor requeues on it. An attempt whose process is gone and that left no
exit.json is `lost`; whoever reads the ledger finds that out (rlvr/ledger/sweeps.py), nobody has to write it down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rlvr.ledger import lock as locks
from rlvr.ledger.files import read_json, write_json


class Cause(StrEnum):
    """Why an attempt ended; the table above."""

    OK = "ok"
    ERROR = "error"
    USER_ERROR = "user_error"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    NODE = "node"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    BUSY = "busy"

    @property
    def code(self) -> int:
        """Exit code of the process."""
        return EXIT_CODES[self]


EXIT_CODES = {
    Cause.OK: 0,
    Cause.ERROR: 1,
    Cause.USER_ERROR: 2,
    Cause.PRUNED: 3,
    Cause.DIVERGED: 4,
    Cause.GPU_OOM: 5,
    Cause.HOST_OOM: 6,
    Cause.NODE: 7,
    Cause.PREEMPTED: 75,
    Cause.TIME_LIMIT: 75,
    Cause.BUSY: 73,
}
BUSY = EXIT_CODES[Cause.BUSY]
HEARTBEAT_S = 1.0

# By the names of their classes: torch and the trainer are not imported here.
_CAUSES = {
    "OutOfMemoryError": Cause.GPU_OOM,
    "MemoryError": Cause.HOST_OOM,
    "Diverged": Cause.DIVERGED,
    "FloatingPointError": Cause.DIVERGED,
    "ValueError": Cause.USER_ERROR,
}


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception stands for: that of its nearest class that has one."""
    return next((_CAUSES[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in _CAUSES), Cause.ERROR)


class Busy(RuntimeError):
    """Another process holds the run, or has just finished it: there is nothing to do here."""


def newest_attempt(run_dir: Path) -> int:
    """Number of the newest attempt, 0 if there is none. Lists the directory: on NFS that is fresher than a stat."""
    try:
        return max((int(each.name) for each in os.scandir(run_dir / "attempts") if each.name.isdigit()), default=0)
    except FileNotFoundError:
        return 0


def _busy(run_dir: Path) -> Busy:
    number = newest_attempt(run_dir)
    job = read_json(run_dir / "attempts" / str(number) / "job.json")
    who = f"process {job['pid']} on {job['host']} (attempt {number})" if job else "another process"
    return Busy(f"run {run_dir.name} is held by {who}. Wait for it or stop it; the run goes on where it left off.")


HALVINGS = 3


def gpu_ooms(run_dir: Path) -> int:
    """Attempts that ran out of GPU memory. The next one halves `trainer.token_budget` so often, at most 3 times.

    Micro-batches have no part in what a run computes, but for rounding: the gradient is summed over the same groups.
    """
    ends = (read_json(path) or {} for path in run_dir.glob("attempts/*/exit.json"))
    return sum(end.get("cause") == Cause.GPU_OOM for end in ends)


def _job(number: int, ranks: int, about: Mapping[str, Any]) -> dict[str, Any]:
    pid = os.getpid()
    who = {"pid": pid, "host": socket.gethostname(), "process_start": locks.process_start(pid), **locks.machine()}
    return {"attempt": number, "started": time.time(), "ranks": ranks, **who, **_allocation(), **about}


def _allocation() -> dict[str, Any]:
    """What SLURM gave: the node's name, the job's number, GPUs on all nodes. Elsewhere GPUs as far as they are told."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ranks = os.environ.get("WORLD_SIZE", "1")
    nodes = int(ranks) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    gpus = len([each for each in devices.split(",") if each.strip() not in ("", "-1")])
    found: dict[str, Any] = {"gpus": gpus * nodes}
    if node := os.environ.get("SLURMD_NODENAME"):
        array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        found |= {"node": node, "slurm_job": f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID", "")}
    return found


class Attempt:
    """A numbered claim on a run. Between `open` and `close` no other process can open the run.

    As a context manager it is closed on the way out if it is not yet: an exception is an error, Ctrl-C a preemption.
    """

    def __init__(self, run_dir: Path, number: int, lock: int) -> None:
        self.run_dir, self.number = run_dir, number
        self.path = run_dir / "attempts" / str(number)
        self.log_path = self.path / "log.txt"
        self.closed: Cause | None = None
        self._lock, self._started = lock, time.monotonic()
        before = read_json(run_dir / "attempts" / str(number - 1) / "heartbeat.json") or {}
        self._beat: dict[str, Any] = {"step": 0, "steps": 0, "phase": "start", "accuracy": before.get("accuracy")}
        self._first_step: int | None = None
        self._written, self._pending = float("-inf"), False

    @classmethod
    def open(cls, run_dir: Path | str, *, ranks: int = 1, **about: Any) -> Attempt:
        """Take the run and number the attempt. Raises Busy, naming the holder, if another process has it or it is done.

        With several ranks the first one opens the attempt, alone. about: what else job.json is to say of it.
        """
        run_dir = Path(run_dir)
        lock = locks.lock(run_dir / "lock")
        if lock is None:
            raise _busy(run_dir)
        try:
            newest = newest_attempt(run_dir)
            if (read_json(run_dir / "attempts" / str(newest) / "exit.json") or {}).get("cause") == Cause.OK:
                raise Busy(f"run {run_dir.name} is finished already (attempt {newest})")
            attempt = cls(run_dir, newest + 1, lock)
            attempt.path.mkdir(parents=True)  # the claim: fails if the number is taken
            write_json(attempt.path / "job.json", _job(attempt.number, ranks, about))
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
            mine, there = os.fstat(self._lock), (self.run_dir / "lock").stat()
        except FileNotFoundError:
            return False
        same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        return same and newest_attempt(self.run_dir) == self.number

    def heartbeat(self, step: int, steps: int, phase: str, accuracy: float | None = None) -> None:
        """Say where the run stands: `step` of `steps` done. Written once a second at most, a change of phase at once.

        accuracy None keeps the one said before, by the attempt before if need be.
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

    def close(self, cause: Cause | str, message: str = "") -> int:
        """Write how it ended, give the run back, return the exit code for the process. The first verdict stands."""
        if self.closed is not None:
            return self.closed.code
        cause = Cause(cause)
        if cause is Cause.OK and not self.holds_lease():
            cause, message = Cause.ERROR, "finished without the lease: a newer attempt owns the run"
        self.closed = cause
        try:
            if self._pending:
                self._write_beat()
            _write_exit(self.path, cause, cause.code, message, time.monotonic() - self._started)
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


def _write_exit(path: Path, cause: Cause, code: int, message: str, seconds: float) -> None:
    verdict = {"cause": cause.value, "code": code, "time": time.time(), "message": message, "seconds": seconds}
    write_json(path / "exit.json", verdict)


def record_death(run_dir: Path, number: int, cause: Cause, code: int, message: str) -> bool:
    """Write the exit of an attempt whose process is dead and left none. False if it had left one: its word stands."""
    path = run_dir / "attempts" / str(number)
    if read_json(path / "exit.json") is not None:
        return False
    job = read_json(path / "job.json") or {}
    _write_exit(path, cause, code, message, max(0.0, time.time() - job.get("started", time.time())))
    return True


def record_rank(run_dir: Path, rank: int, cause: Cause, message: str) -> None:
    """What another rank than the first, which writes exit.json, died of: the first sees only that it is gone."""
    path = run_dir / "attempts" / str(newest_attempt(run_dir))
    if path.is_dir():
        write_json(path / f"rank-{rank}.json", {"cause": cause.value, "message": f"rank {rank}: {message}"})


def rank_record(run_dir: Path, number: int) -> tuple[Cause, str] | None:
    """Cause and message of a rank of this attempt that wrote them down, the lowest one's."""
    words = (read_json(path) for path in sorted((run_dir / "attempts" / str(number)).glob("rank-*.json")))
    return next(((Cause(word["cause"]), str(word["message"])) for word in words if word), None)


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[IO[str]]:
    """Log records, prints and warnings of this attempt go to its own file."""
    with path.open("a", buffering=1) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield file
        finally:
            root.removeHandler(handler)


def brief(metrics: dict[str, float]) -> str:
    """The few numbers of a step that a log line has room for."""
    names = [
        k for k in metrics if k.startswith("evaluation/") or k in ("reward/accuracy", "policy/entropy", "loss/total")
    ]
    return " ".join(f"{name}={metrics[name]:.4g}" for name in names)
