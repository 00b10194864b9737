"""What the processes of a sandbox take together, and an end to those that take too much.

`prlimit` bounds each process and nobody their sum, so who waits for a sandbox looks at all of its processes from
outside, in /proc. Nothing there can be changed from inside, and what is there is shared by nobody: the filter of
system calls (`seccomp.py`) leaves no memory that does not belong to a process or to the sandbox's small /tmp.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Literal

TICK_S = 0.05
FILE_BYTES = 1024  # of kernel memory, for a file in /tmp that may be empty
KERNEL_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WEIGHT_OF_NICE = 1.25  # the kernel's: each step of niceness divides a thread's share of the CPU by this
LOWEST = 19
MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")  # what a process holds beside files on disk, in KiB

Exhausted = Literal["time", "memory"]


def wait(
    process: subprocess.Popen[bytes],
    *beside: subprocess.Popen[bytes],
    seconds: float,
    memory: float,
    begun: Callable[[], bool],
) -> Exhausted | None:
    """Wait until the sandbox `process` ends: None. Or until it or one of those beside it has used up what it may.

    seconds: that a sandbox computes, all of its processes together, and in which all of the sandboxes sleep once they
        have begun. Waiting for a free core does not count; waiting for the sandbox's own other threads does.
    memory: bytes of a sandbox's processes together; pages that several of them share count for each.
    """
    sandboxes = [_Sandbox(each.pid) for each in (process, *beside)]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asleep_s, then = 0.0, time.monotonic()
    while not ended(process, TICK_S):
        stands, now = begun(), time.monotonic()
        computed_s = sum(sandbox.look(stands, now - then) for sandbox in sandboxes)
        if stands and not any(sandbox.runnable for sandbox in sandboxes):
            asleep_s += max(0.0, now - then - computed_s)  # the first may have worked while the last was looked at
        then = now
        if any(sandbox.memory > memory for sandbox in sandboxes):
            return "memory"
        if max(sandbox.used_s for sandbox in sandboxes) + asleep_s > seconds:
            return "time"
        for sandbox in sandboxes:
            _weigh_as_one(sandbox.runnable, nice)
    return None


def ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether it has ended, after waiting that long for it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # before Linux 5.3
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    else:
        select.select([descriptor], [], [], timeout_s)
        os.close(descriptor)
    return process.poll() is not None


class _Sandbox:
    """The process that started a sandbox and all below it, as they were last seen.

    runnable: threads that run or wait for a free core. memory: bytes. used_s: what counts of its time.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._own_s: dict[tuple[bytes, bytes], float] = {}  # CPU of each process ever seen, by pid and start
        self._cpu_s = 0.0
        self.runnable: list[int] = []
        self.memory, self.used_s = 0, 0.0

    def look(self, stands: bool, since_s: float) -> float:
        """Seconds of CPU since the last look. Until it stands, its /tmp is still that of this machine."""
        self.memory, with_children_s = self._scratch() if stands else 0, 0.0
        self.runnable = []
        left = [str(self._pid).encode()]
        while left:
            pid = left.pop()
            with contextlib.suppress(OSError):  # it has ended
                children, threads = _family(pid)
                left += children
                self.runnable += threads
                with_children_s += self._count(pid)
        # Both are too low: children that nobody waited for are missing in one, those that came and went in the other.
        cpu_s = max(self._cpu_s, with_children_s, sum(self._own_s.values()))
        computed_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        among_themselves_s = since_s * (1 - 1 / len(self.runnable)) if stands and self.runnable else 0.0
        self.used_s += max(computed_s, among_themselves_s)
        return computed_s

    def _count(self, pid: bytes) -> float:
        """Add what a process holds; CPU seconds of it and of the children that it has waited for."""
        with open(b"/proc/%b/status" % pid, "rb") as file:  # noqa: PTH123 - pathlib is slow, and this runs often
            lines = [line.split() for line in file if line.startswith(MEMORY)]
        self.memory += 1024 * sum(int(line[1]) for line in lines)
        fields = _stat(b"/proc/%b/stat" % pid)
        user, system, children_user, children_system = (int(n) * KERNEL_TICK_S for n in fields[11:15])
        self._own_s[pid, fields[19]] = user + system
        return user + system + children_user + children_system

    def _scratch(self) -> int:
        """Bytes of the files in the sandbox's /tmp, where we may look into it."""
        try:
            first = _family(str(self._pid).encode())[0][0]
            tmp = os.statvfs(b"/proc/%b/root/tmp" % first)
        except (OSError, IndexError):
            return 0
        return (tmp.f_blocks - tmp.f_bfree) * tmp.f_frsize + (tmp.f_files - tmp.f_ffree) * FILE_BYTES


def _family(pid: bytes) -> tuple[list[bytes], list[int]]:
    """Children of a process and those of its threads that run or wait for a free core."""
    children: list[bytes] = []
    runnable: list[int] = []
    for thread in os.listdir(b"/proc/%b/task" % pid):  # noqa: PTH208 - the same
        with contextlib.suppress(OSError):
            place = b"/proc/%b/task/%b/" % (pid, thread)
            with open(place + b"children", "rb") as file:  # noqa: PTH123 - the same
                children += file.read().split()
            if _stat(place + b"stat")[0] == b"R":
                runnable.append(int(thread))
    return children, runnable


def _stat(path: bytes) -> list[bytes]:
    """The fields after the name, which may hold anything: the state is the first (proc(5) counts it as the third)."""
    with open(path, "rb") as file:  # noqa: PTH123 - the same
        return file.read().rpartition(b")")[2].split()


def _weigh_as_one(threads: list[int], nice: int) -> None:
    """Let several threads together get the share of the CPU that one of that niceness gets. Only ever lowers it."""
    if len(threads) < 2:
        return
    nice += math.ceil(math.log(len(threads), WEIGHT_OF_NICE))
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended, or we may not
            if nice > LOWEST:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            elif nice > os.getpriority(os.PRIO_PROCESS, thread):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
