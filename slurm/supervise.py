"""The supervisor between SLURM and a job's process: it receives signals, passes them on and finds out how the process
ended.

SLURM sends signals to every process of a step. SIGTERM: the job is cancelled or preempted. SIGUSR2: its time is
nearly up. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from slurm import client

LOOK_S = 0.5
RECEIVED = (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended. status: its exit code; negative: the number of the signal that killed it."""

    status: int
    out_of_memory: bool  # the kernel killed a process of this job for its memory


class Supervisor:
    """A context in which the signals of SLURM are received. `stop_signal` is the first of them; after it nothing new
    should be started.
    """

    def __init__(self) -> None:
        self.stop_signal: signal.Signals | None = None
        self.stopped_at = math.inf  # by time.monotonic
        self._receivers: dict[int, subprocess.Popen[bytes]] = {}  # children that signals are passed on to, by pid
        self._kills_lock = threading.Lock()
        self._kills = _memory_kills()

    def __enter__(self) -> Supervisor:
        self._before = {number: signal.signal(number, self._receive) for number in RECEIVED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.stop_signal is None:
            self.stop_signal, self.stopped_at = signal.Signals(number), time.monotonic()
        for child in list(self._receivers.values()):
            _send_signal(child, number)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        ranks: int,
        should_kill: Callable[[], bool] | None = None,
    ) -> ProcessEnd:
        """Run a process to its end; several threads may do so at once. should_kill: called regularly; if it returns
        True, the process is killed.

        With several ranks the command is their launcher. SIGUSR2 would kill it, so it ignores that signal; the ranks
        catch it, and get it from SLURM. No signal is passed on to the launcher: a second SIGTERM would cut its orderly
        end short.
        """
        ignoring_usr2 = ["sh", "-c", "trap '' USR2; exec \"$@\"", "sh"] if ranks > 1 else []
        child = subprocess.Popen([*ignoring_usr2, *command], env=dict(environment), stdin=subprocess.DEVNULL)
        if ranks == 1:
            self._receivers[child.pid] = child
            if self.stop_signal is not None:  # it arrived before the child existed
                _send_signal(child, self.stop_signal)
        while should_kill is not None and child.poll() is None:
            if should_kill():
                child.kill()
            time.sleep(LOOK_S)
        status = child.wait()
        self._receivers.pop(child.pid, None)
        with self._kills_lock:  # a kill by the kernel is attributed to the process that fails first after it
            kills, before = _memory_kills(), self._kills
            out_of_memory = status != 0 and kills > before
            self._kills = kills if out_of_memory else before
        return ProcessEnd(status, out_of_memory)

    def pause(self, seconds: float) -> None:
        """Wait so long, or until a stop signal arrives."""
        deadline = time.monotonic() + seconds
        while self.stop_signal is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))


def _send_signal(child: subprocess.Popen[bytes], number: int) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)


@dataclass(frozen=True)
class Allocation:
    """The job that this process runs in."""

    job: str  # as scontrol takes it: 12_3
    number: str  # of the whole array, or of a job that is none
    index: int  # in the array
    node: int  # index of this node in the job, from 0
    restarts: int  # how often the job has been requeued

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Allocation:
        """The allocation of this process. ValueError outside a job."""
        if "SLURM_JOB_ID" not in environment:
            raise ValueError("this runs inside a SLURM job, but SLURM_JOB_ID is not set")
        restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
        node = int(environment.get("SLURM_NODEID") or 0)
        array = environment.get("SLURM_ARRAY_JOB_ID")
        if array is None:
            return cls(environment["SLURM_JOB_ID"], environment["SLURM_JOB_ID"], 0, node, restarts)
        index = int(environment["SLURM_ARRAY_TASK_ID"])
        return cls(f"{array}_{index}", array, index, node, restarts)

    def requeue(self) -> bool:
        """Return the job to the queue; False if it was cancelled. A preempted job is RUNNING during its grace time."""
        if client.state_of(self.job) != "RUNNING":
            return False
        client.requeue(self.job)
        return True


def _memory_kills() -> int:
    """How many processes of this control group the kernel has killed for their memory; 0 if that is not known."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                file = Path(f"/sys/fs/cgroup{path}/memory.events")
            elif "memory" in controllers.split(","):
                file = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            else:
                continue
            if file.exists() and (match := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)):
                return int(match.group(1))
    return 0
