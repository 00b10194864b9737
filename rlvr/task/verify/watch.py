"""Measures the time and memory of all processes of a sandbox together, and detects when they exceed a limit.

`prlimit` bounds each process but not their sum, so the process that waits for a sandbox reads the usage of all of its
processes from outside, in /proc. It cannot be changed from inside, and it is complete: the filter of system calls
(`seccomp.py`) allows no memory that does not belong to a process or to the sandbox's small /tmp.
"""

import contextlib
import math
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Literal

TICK_S = 0.05
FILE_BYTES = 1024  # of kernel memory for each file in /tmp, even an empty one
KERNEL_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WEIGHT_OF_NICE = 1.25  # in the kernel each step of niceness divides a thread's share of the CPU by this
LOWEST = 19  # the lowest priority
MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")  # a process's memory except files on disk, in KiB

Exhausted = Literal["time", "memory"]


def wait(
    process: subprocess.Popen[bytes],
    *beside: subprocess.Popen[bytes],
    seconds: float,
    memory: float,
    begun: Callable[[], bool],
) -> Exhausted | None:
    """Wait until the sandbox `process` ends: None. Or until it or one of those `beside` it exceeds a limit: which.

    seconds: limit of the time that a sandbox computes, all of its processes together, plus the time in which all of the
        sandboxes sleep after they have begun. Waiting for a free core does not count; waiting for the sandbox's own
        other threads does.
    memory: limit of a sandbox's processes together, in bytes; pages that several of them share count for each.
    begun: whether all sandboxes are set up.
    """
    sandboxes = [_Sandbox(sandbox.pid) for sandbox in (process, *beside)]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asleep_s, previous = 0.0, time.monotonic()
    while not ended(process, TICK_S):
        is_set_up, now = begun(), time.monotonic()
        elapsed_s, previous = now - previous, now
        computed_s = sum(sandbox.measure(is_set_up, elapsed_s) for sandbox in sandboxes)
        if is_set_up and not any(sandbox.runnable for sandbox in sandboxes):
            asleep_s += max(0.0, elapsed_s - computed_s)  # one may have worked while another was measured
        if any(sandbox.memory > memory for sandbox in sandboxes):
            return "memory"
        if max(sandbox.used_s for sandbox in sandboxes) + asleep_s > seconds:
            return "time"
        for sandbox in sandboxes:
            _share_one_threads_cpu(sandbox.runnable, nice)
    return None


def ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether a process has ended, after waiting for its end for at most `timeout_s` seconds."""
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
    """The last measurement of the process that started a sandbox and of all its descendants.

    runnable: threads that run or wait for a free core. memory: bytes. used_s: seconds that count towards the limit.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._own_s: dict[tuple[bytes, bytes], float] = {}  # CPU of each process ever seen, by pid and start
        self._cpu_s = 0.0
        self.runnable: list[int] = []
        self.memory, self.used_s = 0, 0.0

    def measure(self, is_set_up: bool, elapsed_s: float) -> float:
        """CPU seconds since the last measurement, `elapsed_s` ago. Before the setup its /tmp is the host's."""
        self.memory = self._scratch_bytes() if is_set_up else 0
        self.runnable = []
        with_children_s = 0.0
        pending = [str(self._pid).encode()]
        while pending:
            pid = pending.pop()
            with contextlib.suppress(OSError):  # the process has ended
                children, threads = _children_and_runnable(pid)
                pending += children
                self.runnable += threads
                with_children_s += self._add_process(pid)
        # Both sums are too low: one lacks children that no process waited for, the other those that were never seen.
        cpu_s = max(self._cpu_s, with_children_s, sum(self._own_s.values()))
        computed_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        # n runnable threads share the CPU of one (see below): each waits for the others for 1 − 1/n of the time.
        waited_s = elapsed_s * (1 - 1 / len(self.runnable)) if is_set_up and self.runnable else 0.0
        self.used_s += max(computed_s, waited_s)
        return computed_s

    def _add_process(self, pid: bytes) -> float:
        """Add a process's memory; return the CPU seconds of it and of the children that it has waited for."""
        with open(b"/proc/%b/status" % pid, "rb") as file:  # noqa: PTH123 - pathlib is slow, and this runs often
            lines = [line.split() for line in file if line.startswith(MEMORY)]
        self.memory += 1024 * sum(int(line[1]) for line in lines)
        fields = _stat(b"/proc/%b/stat" % pid)
        user, system, children_user, children_system = (int(n) * KERNEL_TICK_S for n in fields[11:15])
        self._own_s[pid, fields[19]] = user + system
        return user + system + children_user + children_system

    def _scratch_bytes(self) -> int:
        """Bytes of the files in the sandbox's /tmp; 0 if this process may not read it."""
        try:
            children, _ = _children_and_runnable(str(self._pid).encode())
            tmp = os.statvfs(b"/proc/%b/root/tmp" % children[0])
        except (OSError, IndexError):
            return 0
        return (tmp.f_blocks - tmp.f_bfree) * tmp.f_frsize + (tmp.f_files - tmp.f_ffree) * FILE_BYTES


def _children_and_runnable(pid: bytes) -> tuple[list[bytes], list[int]]:
    """(children of a process, those of its threads that run or wait for a free core)."""
    children: list[bytes] = []
    runnable: list[int] = []
    for thread in os.listdir(b"/proc/%b/task" % pid):  # noqa: PTH208 - as above
        with contextlib.suppress(OSError):
            folder = b"/proc/%b/task/%b/" % (pid, thread)
            with open(folder + b"children", "rb") as file:  # noqa: PTH123 - as above
                children += file.read().split()
            if _stat(folder + b"stat")[0] == b"R":
                runnable.append(int(thread))
    return children, runnable


def _stat(path: bytes) -> list[bytes]:
    """The fields after the name, which may contain any characters. The first is the state (the third in proc(5))."""
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        return file.read().rpartition(b")")[2].split()


def _share_one_threads_cpu(threads: list[int], nice: int) -> None:
    """Lower the priority of several threads so that together they get the CPU share of one of niceness `nice`."""
    if len(threads) < 2:
        return
    nice += math.ceil(math.log(len(threads), WEIGHT_OF_NICE))
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread has ended, or its priority may not be changed
            if nice > LOWEST:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            elif nice > os.getpriority(os.PRIO_PROCESS, thread):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
