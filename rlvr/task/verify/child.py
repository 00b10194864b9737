"""The process that verifies: started by `rlvr.task.verify.pool`, one JSON object per line in, one out.

Run as a script: `python -P child.py ROOT MODULE MEMORY_BYTES PARENT_PID`. It never imports the trainer. MODULE has a
function `judge(request: dict) -> dict`.
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
import resource  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, BinaryIO  # noqa: E402

OUT_OF_MEMORY = 77  # exit code
PR_SET_PDEATHSIG = 1


def main() -> None:
    root, module, memory, parent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    # Whatever the verifier prints goes to stderr: the answers have a descriptor of their own.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if sys.platform == "linux":  # short of memory, the kernel is to kill this process and its children, not the trainer
        with contextlib.suppress(OSError):  # where /proc is read-only
            Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.append(root)
    judge = importlib.import_module(module).judge
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        try:
            reply = judge(json.loads(line))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # the heap is as it is: a fresh process is safer than this one
        _send(replies, reply)


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
