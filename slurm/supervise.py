"""What stands between SLURM and a job's process: it hears the signals, passes them on and sees how the process ended.

SLURM sends signals to every process of a step. SIGTERM: the job is cancelled or preempted. SIGUSR2: its time is
nearly up. Standard library only.
"""

from __future__ import annotations

import contextlib
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
HEARD = (signal.SIGTERM, signal.SIGUSR2)


@dataclass(frozen=True)
class Ended:
    """How a process ended. status: its exit code, negative: the signal that killed it."""

    status: int
    out_of_memory: bool  # the kernel killed a process of this job for its memory


class Supervisor:
    """Hears signals while entered. `told` is the first one: from then on nothing new should be started."""

    def __init__(self) -> None:
        self.told: signal.Signals | None = None
        self._hearing: dict[int, subprocess.Popen[bytes]] = {}  # children that signals are passed on to
        self._counting = threading.Lock()
        self._kills = _memory_kills()

    def __enter__(self) -> Supervisor:
        self._before = {each: signal.signal(each, self._hear) for each in HEARD}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.told = self.told or signal.Signals(number)
        for child in list(self._hearing.values()):
            _tell(child, number)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        ranks: int,
        in_vain: Callable[[], bool] | None = None,
    ) -> Ended:
        """Run a process to its end. Several threads may, each its own. in_vain: asked now and then; kill it if so.

        With several ranks the command starts them: SIGUSR2 would kill it, so it ignores that, and its ranks, which
        catch it, get it from SLURM. Nothing is passed on to it: a second SIGTERM would cut its farewell short.
        """
        deaf = ["sh", "-c", "trap '' USR2; exec \"$@\"", "sh"] if ranks > 1 else []
        child = subprocess.Popen([*deaf, *command], env=dict(environment), stdin=subprocess.DEVNULL)
        if ranks == 1:
            self._hearing[child.pid] = child
            if self.told is not None:  # it came before there was anybody to pass it on to
                _tell(child, self.told)
        while in_vain is not None and child.poll() is None:
            if in_vain():
                child.kill()
            time.sleep(LOOK_S)
        status = child.wait()
        self._hearing.pop(child.pid, None)
        with self._counting:  # who ends first after the kernel killed was killed
            kills, before = _memory_kills(), self._kills
            out_of_memory = status != 0 and kills > before
            self._kills = kills if out_of_memory else before
        return Ended(status, out_of_memory)

    def pause(self, seconds: float) -> None:
        """Wait, but not when told to stop."""
        deadline = time.monotonic() + seconds
        while self.told is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))


def _tell(child: subprocess.Popen[bytes], number: int) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)


@dataclass(frozen=True)
class Allocation:
    """The job that this process runs in."""

    job: str  # as scontrol takes it: 12_3
    number: str  # of the whole array, or of a job without one
    index: int  # in the array
    node: int  # of the job's, counted from 0
    restarts: int  # times that it has been requeued

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Allocation:
        """ValueError outside a job."""
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
        """Back into the queue; False if the job was cancelled. A preempted one is RUNNING to the end of its grace."""
        if client.state_of(self.job) != "RUNNING":
            return False
        client.requeue(self.job)
        return True


def _memory_kills() -> int:
    """Processes of this control group that the kernel has killed for their memory; 0 where it cannot be told."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                file = Path(f"/sys/fs/cgroup{path}/memory.events")
            elif "memory" in controllers.split(","):
                file = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            else:
                continue
            if file.exists() and (found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)):
                return int(found.group(1))
    return 0
