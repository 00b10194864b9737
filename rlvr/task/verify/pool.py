"""Reusable child processes that verify answers, under a wall-clock limit that nothing in the child can evade.

A verifier may hang in one long C operation, use up all memory or crash: it therefore runs in a separate process and
session, which are killed and replaced. Requests and replies are JSON lines over pipes; nothing is unpickled. The parent
never blocks on a child: every pipe is polled with a deadline.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from rlvr.task.verify import OUT_OF_MEMORY
from rlvr.task.verify.sandbox import Sandbox
from rlvr.task.verify.watch import WEIGHT_OF_NICE

START_TIMEOUT_S = 120.0  # importing sympy on a crowded machine or a cold network disk
START_ATTEMPTS = 3
ANSWER_ATTEMPTS = 2
REPLY_BYTES = 64 * 2**20  # longest reply


@dataclass(eq=False)
class Job:
    """One distinct request, and the number of children that ended while they worked on it."""

    line: bytes
    places: list[int]  # its indices in the caller's sequence
    crashes: int = 0
    exit_status: int = 0  # of the last child that ended


@dataclass(eq=False)
class Worker:
    """A child process: starting until its message `ready`, then idle or busy with one job."""

    process: subprocess.Popen[bytes]
    stderr: Any
    deadline: float  # of the start or of the answer, in seconds of the monotonic clock
    ready: bool = False
    job: Job | None = None
    received: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""

    @property
    def timed(self) -> bool:
        """Whether the deadline applies, because the process is starting or busy."""
        return not self.ready or self.job is not None

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            assert stream is not None
            stream.close()

    def complaint(self) -> str:
        """The end of the process's stderr."""
        self.stderr.seek(0)
        return self.stderr.read()[-2000:].decode(errors="replace").strip()


def _message(line: bytes | bytearray) -> dict[str, Any] | None:
    """The JSON object in a line; None if it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


def niceness_for(workers: int) -> int:
    """The niceness at which this many processes together get half of the CPU time of a trainer that uses every core."""
    return min(19, math.ceil(math.log(2 * workers, WEIGHT_OF_NICE)))


class Pool:
    """`workers` processes running `module.judge`. They start at the first `ask` and stay until `close`.

    timeout_s: wall-clock limit of each answer, in seconds. memory_gb: address space of each process.
    sandbox: in which each process runs; None if it never executes what it judges, or starts sandboxes itself.
    nice: added to the niceness of this process for each of the processes.
    """

    def __init__(
        self,
        module: str,
        *,
        workers: int,
        timeout_s: float,
        memory_gb: float,
        sandbox: Sandbox | None = None,
        nice: int = 0,
    ) -> None:
        self._module, self._num_workers = module, workers
        self._timeout_s, self._memory, self._sandbox = timeout_s, int(memory_gb * 2**30), sandbox
        self._nice = nice
        self._workers: list[Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def ask(self, requests: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """The reply to each request, in order; equal requests are sent once. timeout_s: a limit in place of the pool's.

        {"outcome": "timeout"}: no reply in time, or none within the memory limit; both count as the answer's fault.
        {"outcome": "error"}: two processes crashed, were killed or sent no JSON object. Raises RuntimeError, with the
        process's stderr, if a process does not start.
        """
        jobs: dict[bytes, Job] = {}
        for place, request in enumerate(requests):
            line = json.dumps(request).encode() + b"\n"
            jobs.setdefault(line, Job(line, [])).places.append(place)
        replies: list[dict[str, Any]] = [{}] * len(requests)
        with self._lock:
            try:
                self._run(deque(jobs.values()), timeout_s or self._timeout_s, replies)
            except BaseException:
                self._kill_all()  # late replies would be taken for replies to the next requests
                raise
        return replies

    def close(self) -> None:
        """Kill the processes. A later `ask` starts new ones."""
        with self._lock:
            self._kill_all()

    def _kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _run(self, waiting: deque[Job], timeout_s: float, replies: list[dict[str, Any]]) -> None:
        """Process all jobs and write their replies into `replies`."""
        num_open = len(waiting)
        while num_open:
            self._start_workers(min(self._num_workers, num_open))
            self._assign(waiting, timeout_s)
            for worker in self._poll():
                result = self._receive(worker)
                if result is None:
                    continue
                job, reply = result
                if reply is None:
                    job.crashes += 1
                    if job.crashes < ANSWER_ATTEMPTS:
                        waiting.appendleft(job)
                        continue
                    reply = {"outcome": "timeout" if job.exit_status == OUT_OF_MEMORY else "error"}
                for place in job.places:
                    replies[place] = reply
                num_open -= 1

    def _start_workers(self, num_wanted: int) -> None:
        """Start workers until there are `num_wanted`, after the removal of those that ended while idle."""
        for worker in [w for w in self._workers if not w.timed and w.process.poll() is not None]:
            self._remove(worker)
        while len(self._workers) < num_wanted:
            self._workers.append(self._start())

    def _assign(self, waiting: deque[Job], timeout_s: float) -> None:
        for worker in self._workers:
            if waiting and not worker.timed:
                worker.job = waiting.popleft()
                worker.unsent = worker.job.line
                worker.deadline = time.monotonic() + timeout_s

    def _start(self) -> Worker:
        package = Path(__file__).parents[2]
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        script = str(Path(__file__).with_name("child.py"))
        arguments = [script, str(package.parent), self._module, str(self._memory), str(self._nice)]
        launch: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
        command = [sys.executable, "-P", *arguments, str(os.getpid())]
        if self._sandbox is not None:  # the parent process inside a sandbox has the pid 1
            launch = replace(self._sandbox, shown=(package, *self._sandbox.shown)).popen
            command = [*arguments, "1"]
        process = launch(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return Worker(process, stderr, time.monotonic() + START_TIMEOUT_S)

    def _poll(self) -> list[Worker]:
        """Send what can be sent, and return the workers that have output, have ended or are past their deadline."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
                if worker.unsent:
                    selector.register(worker.process.stdin, selectors.EVENT_WRITE, worker)  # type: ignore[arg-type]
            deadline = min(w.deadline for w in self._workers if w.timed)
            events = selector.select(max(0.0, deadline - time.monotonic()))
        readable: list[Worker] = []
        for key, mask in events:
            if mask & selectors.EVENT_WRITE:
                self._send(key.data)
            else:
                readable.append(key.data)
        now = time.monotonic()
        late = [w for w in self._workers if w.timed and w.deadline <= now and w not in readable]
        return readable + late

    @staticmethod
    def _send(worker: Worker) -> None:
        assert worker.process.stdin is not None
        try:
            worker.unsent = worker.unsent[os.write(worker.process.stdin.fileno(), worker.unsent) :]
        except BrokenPipeError:
            worker.unsent = b""  # the process has ended: the next poll reads the end of its stdout

    def _receive(self, worker: Worker) -> tuple[Job, dict[str, Any] | None] | None:
        """(job, reply); (job, None) if the process ended before its reply; None if no job is finished."""
        assert worker.process.stdout is not None
        try:
            chunk = os.read(worker.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:  # no output: the worker is past its deadline
            return self._handle_overdue(worker)
        if not chunk:
            return self._handle_exit(worker)
        worker.received += chunk
        is_too_long = len(worker.received) > REPLY_BYTES
        if not worker.received.endswith(b"\n") and not is_too_long:
            return None
        message = None if is_too_long or not worker.timed else _message(worker.received)
        worker.received.clear()
        if message is None:  # of code in an answer, perhaps: an idle process has nothing to say
            os.killpg(worker.process.pid, signal.SIGKILL)
            return self._handle_exit(worker)
        if not worker.ready:
            worker.ready, self._failed_starts = True, 0
            return None
        assert worker.job is not None
        job, worker.job = worker.job, None
        return job, message

    def _handle_overdue(self, worker: Worker) -> tuple[Job, dict[str, Any]]:
        self._remove(worker)
        if worker.job is None:
            raise RuntimeError(f"the verifier {self._module} did not start within {START_TIMEOUT_S:.0f} s")
        return worker.job, {"outcome": "timeout"}

    def _handle_exit(self, worker: Worker) -> tuple[Job, None] | None:
        code, complaint = worker.process.wait(), worker.complaint()
        self._remove(worker)
        if worker.ready:
            if worker.job is None:
                return None
            worker.job.exit_status = code
            return worker.job, None
        # A signal may have come before the child could ignore it, so the start is repeated; a failed import is final.
        self._failed_starts += 1
        if code >= 0 or self._failed_starts == START_ATTEMPTS:
            raise RuntimeError(f"the verifier {self._module} did not start (exit status {code}):\n{complaint}")
        return None

    def _remove(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.kill()
