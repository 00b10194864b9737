"""Forked processes of the analysis, which end with the process that forked them."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Called first in a forked process: however its parent ends, the kernel ends this process too. Linux only.

    A broken pipe does not tell it: it has inherited both ends. parent: the process id of the parent.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call above, so that no signal would come
