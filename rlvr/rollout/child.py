"""A child process that answers messages: started, addressed with a timeout, and killed. It ends with this process."""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlvr.ledger.cause import Cause
from rlvr.rollout.vllm_server import Arrays, pack, receive

log = logging.getLogger("rlvr.vllm")

LAST_LINES = 30  # of the child's standard error, kept for messages
CHUNK = 1 << 20  # bytes
POLL_S = 0.1  # how often a sender checks whether another thread still reads
PATIENCE_S = 5.0  # for the last lines of a process that has ended
LONGEST_PARENT = 50  # characters of a directory for temporary files: the path of a socket in it has 107 at most
KILLED_S = 60.0  # for a killed process to end: one that hangs in a driver may never do so
# SLURM sends SIGUSR2 to every process of a step, a terminal SIGINT to its process group. The trainer finishes its step
# after either, and needs the child for that.
BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


@contextlib.contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Context in which our environment has these variables, too; then it is restored, whatever has changed it."""
    before = os.environ.copy()
    try:
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Context in which BLOCKED_SIGNALS wait. A process that is started in it never receives them."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class ProcessLost(RuntimeError):
    """Raised when a child process has ended or does not respond."""


class EngineLost(RuntimeError):
    """Raised when an engine's process is lost, or its node; the message names it. The run continues from its newest
    checkpoint. Out of GPU memory in the engine is not out of GPU memory in the trainer: the cause is not that.
    """

    def __init__(self, message: str, cause: Cause = Cause.NODE) -> None:
        super().__init__(message)
        self.cause = cause


class Process(Protocol):
    """The interface of a Child, wherever its process runs."""

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None: ...
    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]: ...
    def kill(self) -> int: ...


class Child:
    """`python -P SCRIPT OPTIONS`; its standard error goes to our log. Messages: see rlvr/rollout/vllm_server.py."""

    def __init__(self, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        command = [python, "-P", str(script), json.dumps({**options, "parent": os.getpid()})]
        if Path(python).is_absolute():  # as in an activated environment: vLLM runs compilers (ninja) of its own
            environment = {**environment, "PATH": f"{Path(python).parent}:{environment.get('PATH', os.defpath)}"}
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= LONGEST_PARENT else "/tmp"
        self._files = tempfile.TemporaryDirectory(prefix="rlvr-vllm-", dir=parent, ignore_cleanup_errors=True)
        environment = {**environment, "TMPDIR": self._files.name}  # vLLM removes nothing that it puts there
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with signals_blocked():
            self.process = subprocess.Popen(command, env=environment, bufsize=0, start_new_session=True, **pipes)
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log_thread = threading.Thread(target=self._copy_to_log, daemon=True)
        self._log_thread.start()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        for stream in (self.process.stdin, self.process.stdout):
            os.set_blocking(stream.fileno(), False)
            weakref.finalize(self, stream.close)  # not before: other files would get the numbers that threads still use
        self._unread = bytearray()  # bytes of answers that a sender has read
        self._reader = threading.Lock()  # held by the one thread that reads

    def _copy_to_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.last_lines.append(line.decode(errors="replace").rstrip())
                log.info("%s", self.last_lines[-1])

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        """Raises ProcessLost if the child ends, or does not read the whole message in time.

        Answers that arrive meanwhile are read and kept: a child that cannot write does not read, either.
        """
        data, deadline = memoryview(pack(header, arrays)), time.monotonic() + timeout_s
        while data:
            if time.monotonic() > deadline:
                raise ProcessLost(f"it has not read its input for {timeout_s:.0f} s")
            if not self._may_write():
                continue
            try:
                data = data[os.write(self._stdin, data[:CHUNK]) :]
            except BrokenPipeError:
                raise ProcessLost(self._exit_description()) from None

    def _may_write(self) -> bool:
        """Wait until the child's input has room, for a short time. Returns whether it has."""
        reads = self._reader.acquire(blocking=False)  # else another thread reads
        try:
            readable, writable, _ = select.select([self._stdout] if reads else [], [self._stdin], [], POLL_S)
            if readable:
                self._unread += os.read(self._stdout, CHUNK)
            return bool(writable)
        finally:
            if reads:
                self._reader.release()

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        """The next message. Raises ProcessLost if the child ends, or sends nothing for `timeout_s`."""
        with self._reader:
            return receive(lambda count: self._read(count, timeout_s))

    def _read(self, count: int, timeout_s: float) -> bytes:
        while len(self._unread) < count:
            ready, _, _ = select.select([self._stdout], [], [], timeout_s)
            if not ready:
                raise ProcessLost(f"it has sent nothing for {timeout_s:.0f} s")
            chunk = os.read(self._stdout, CHUNK)
            if not chunk:
                raise ProcessLost(self._exit_description())
            self._unread += chunk
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    def _exit_description(self) -> str:
        try:
            code = self.process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return "it has closed its pipes and does not end"
        self._log_thread.join(PATIENCE_S)
        lines = [line for line in self.last_lines if line.strip()]
        return f"it ended with exit status {code}: {lines[-1] if lines else ''}\n" + "\n".join(lines)

    def kill(self) -> int:
        """Kill the process and all that it has started. Returns its exit status, negative if a signal ended it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            try:
                self.process.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                log.warning("process %d was killed and does not end: it hangs in a driver", self.process.pid)
        self._files.cleanup()
        self._log_thread.join(PATIENCE_S)  # threads that read or write see the end of the pipes
        return -signal.SIGKILL if self.process.returncode is None else self.process.returncode
