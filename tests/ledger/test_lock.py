"""Which process is meant: numbers are used again, and the dead linger."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rlvr.ledger import lock


def test_a_reused_process_number_is_not_the_same_process() -> None:
    me = {"pid": os.getpid(), "process_start": lock.process_start(os.getpid()), **lock.machine()}
    assert lock.is_alive(me) is True
    assert lock.is_alive({**me, "process_start": 1}) is False
    assert lock.is_alive({**me, "boot": "another"}) is None


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 10
    while lock.process_start(process.pid) is not None:  # it ends, but nobody has waited for it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()
