"""The verifying process, started by `rlvr.task.verify.pool`: reads one JSON object per line, writes one for each.

Run as a script: `python -P child.py ROOT MODULE MEMORY_BYTES NICE PARENT_PID`. It never imports the trainer. MODULE has
a function `judge(request: dict) -> dict`.
"""

import signal

# Before any slow import: SLURM sends SIGUSR1/2 to every process of a step, a terminal sends SIGINT to its process
# group, and the default action of each would end this process. The parent ends it with SIGKILL or by closing stdin.
for ignored_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(ignored_signal, signal.SIG_IGN)

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
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
KEYCTL = {"x86_64": 250, "aarch64": 219}  # number of the system call keyctl
KEYCTL_JOIN_SESSION_KEYRING = 1
OOM_SCORE = 900  # killed before the trainer (0), after processes in a sandbox (1000)
AUTOGROUP_WAIT_S = 0.1  # the kernel's minimum between two changes of an autogroup by unprivileged users


def _search_path_index(root: str) -> int:
    """Where `root` goes in sys.path: a checkout first, a folder of installed packages behind the standard library."""
    if Path(root).name not in INSTALLED:
        return 0
    return next((i for i, entry in enumerate(sys.path) if Path(entry).name in INSTALLED), len(sys.path))


def main() -> None:
    root, module = sys.argv[1:3]
    memory, nice, parent = map(int, sys.argv[3:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # the parent ended before the call above, so that no signal would come
    # What the verifier prints goes to stderr; replies have their own descriptor.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # /proc is read-only in a sandbox, which has set the score already
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        keyctl = KEYCTL.get(platform.machine())
        if keyctl is not None:  # a new session keyring, so that the user's keys cannot be reached from this process
            ctypes.CDLL(None).syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    if nice:
        _lower_priority(nice)
    if sys.platform == "linux":  # after what is written to /proc/self, whose files are root's from here on: child
        # processes of an answer must not open the pipes of this one there
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
    sys.path.insert(_search_path_index(root), root)
    judge = importlib.import_module(module).judge
    out_of_memory = importlib.import_module("rlvr.task.verify").OUT_OF_MEMORY
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        try:
            reply = judge(json.loads(line))
        except MemoryError:
            os._exit(out_of_memory)  # the state of the heap is unknown: a new process is safer than this one
        _send(replies, reply)


def _lower_priority(nice: int) -> None:
    """Lower the priority of this process and of its session, which Linux may schedule as a unit (autogroup, sched(7)).

    Its child processes inherit the niceness of the process and, as long as they cannot leave the session, share the
    session's.
    """
    os.nice(nice)
    autogroup = Path("/proc/self/autogroup")
    for _ in range(10):
        try:
            autogroup.write_text(str(nice))
        except BlockingIOError:
            time.sleep(AUTOGROUP_WAIT_S)
        except OSError:  # this kernel has no autogroups: only the niceness of processes counts
            return
        else:
            return


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
