"""The process that verifies: started by `rlvr.task.verify.pool`, one JSON object per line in, one out.

Run as a script: `python -P child.py ROOT MODULE MEMORY_BYTES NICE PARENT_PID`. It never imports the trainer. MODULE has
a function `judge(request: dict) -> dict`.
"""

import signal

# Before anything slow: SLURM sends SIGUSR1/2 to every process of a step, a terminal SIGINT to its group, and the
# default action of each would end us. Our parent ends us with SIGKILL or by closing stdin.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)

import contextlib  # noqa: E402
import ctypes  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, BinaryIO  # noqa: E402

INSTALLED = ("site-packages", "dist-packages")
PR_SET_PDEATHSIG = 1
KEYCTL = {"x86_64": 250, "aarch64": 219}  # number of the system call
KEYCTL_JOIN_SESSION_KEYRING = 1
OOM_SCORE = 900  # before the trainer (0), after what runs in a sandbox (1000)
AUTOGROUP_WAIT_S = 0.1  # between two changes of an autogroup by ordinary users of a machine: the kernel's rule


def _place(root: str) -> int:
    """In the search path: a checkout before all other installs, installed packages behind the standard library."""
    if Path(root).name not in INSTALLED:
        return 0
    return next((place for place, entry in enumerate(sys.path) if Path(entry).name in INSTALLED), len(sys.path))


def main() -> None:
    root, module = sys.argv[1:3]
    memory, nice, parent = map(int, sys.argv[3:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    # Whatever the verifier prints goes to stderr: the answers have a descriptor of their own.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # where /proc is read-only: in a sandbox, which has had this done for it
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        if number := KEYCTL.get(platform.machine()):  # a new session keyring: none of our keys are reached from inside
            ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)
    if nice:
        _yield_to_others(nice)
    sys.path.insert(_place(root), root)
    judge = importlib.import_module(module).judge
    out_of_memory = importlib.import_module("rlvr.task.verify").OUT_OF_MEMORY
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        try:
            reply = judge(json.loads(line))
        except MemoryError:
            os._exit(out_of_memory)  # the heap is as it is: a fresh process is safer than this one
        _send(replies, reply)


def _yield_to_others(nice: int) -> None:
    """Lower the priority of this process and of its session, which Linux may schedule as one against other sessions.

    What it starts inherits the first and, as long as it cannot leave the session, shares the second (sched(7)).
    """
    os.nice(nice)
    autogroup = Path("/proc/self/autogroup")
    for _ in range(10):
        try:
            autogroup.write_text(str(nice))
        except BlockingIOError:
            time.sleep(AUTOGROUP_WAIT_S)
        except OSError:  # there are none here: niceness of processes is all that counts
            return
        else:
            return


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
