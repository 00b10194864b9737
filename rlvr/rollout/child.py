"""A child process that answers messages: started, talked to under a deadline, and killed. It cannot outlive us."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlvr.rollout.vllm_server import Arrays, pack, receive

log = logging.getLogger("rlvr.vllm")

LAST_LINES = 30  # lines
CHUNK = 1 << 20  # bytes
# SLURM sends SIGUSR2 to every process of a step, a terminal SIGINT to its group; the trainer finishes its step after
# either, and needs the child for that.
NOT_FOR_A_CHILD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


@contextlib.contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, the environment of this process has these too; after, it is what it was before, whoever changed it."""
    before = os.environ.copy()
    try:
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Lost(RuntimeError):
    """The child has died or hangs."""


class Process(Protocol):
    """What a Child is to those who talk to it, wherever it runs."""

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None: ...
    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]: ...
    def kill(self) -> int: ...
    @property
    def pid(self) -> int: ...


class Child:
    """`python -P SCRIPT OPTIONS`, its standard error in our log. Messages: rlvr/rollout/vllm_server.py."""

    def __init__(self, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        command = [python, "-P", str(script), json.dumps({**options, "parent": os.getpid()})]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_A_CHILD)  # a child inherits what is blocked
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                bufsize=0,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.last_lines.append(line.decode(errors="replace").rstrip())
                log.info("%s", self.last_lines[-1])

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        """Raises Lost if the child does not take it in time."""
        data = memoryview(pack(header, arrays))
        deadline = time.monotonic() + timeout_s
        while data:
            _, ready, _ = select.select([], [self._in], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Lost(f"it has not listened for {timeout_s:.0f} s")
            try:
                data = data[os.write(self._in, data[:CHUNK]) :]
            except BrokenPipeError:
                raise Lost(self._how_it_ended()) from None

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        """The next message. Raises Lost if the child dies, or says nothing for `timeout_s`."""
        return receive(lambda count: self._exactly(count, timeout_s))

    def _exactly(self, count: int, timeout_s: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            ready, _, _ = select.select([self._out], [], [], timeout_s)
            if not ready:
                raise Lost(f"it has said nothing for {timeout_s:.0f} s")
            chunk = os.read(self._out, min(CHUNK, count - len(data)))
            if not chunk:
                raise Lost(self._how_it_ended())
            data += chunk
        return bytes(data)

    def _how_it_ended(self) -> str:
        code = self.process.wait()
        self._listener.join(timeout=5)
        lines = [line for line in self.last_lines if line.strip()]
        return f"it ended with exit status {code}: {lines[-1] if lines else ''}\n" + "\n".join(lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> int:
        """End it and whatever it started. Returns its exit status: negative if a signal ended it, ours or another."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self._listener.join(timeout=5)
        return self.process.returncode
