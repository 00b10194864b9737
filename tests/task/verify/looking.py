"""A verifier that says how its process stands."""

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

PR_GET_DUMPABLE = 3


def judge(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "session": os.getsid(0) == os.getpid(),
        "share": Path("/proc/self/autogroup").read_text().split()[-1],
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
        "keyring": session_keyring(),
        "dumpable": ctypes.CDLL(None).prctl(PR_GET_DUMPABLE),
    }


def session_keyring() -> int:
    """Serial number; keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, do not make one)."""
    number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
    return ctypes.CDLL(None).syscall(number, 0, ctypes.c_long(-3), 0)
