"""A loss that hangs once: it waits for ever for a lock that is never released."""

import os
import threading
from pathlib import Path

from rlvr.loss.reinforce import reinforce
from rlvr.objective.batch import Batch, Policy, Terms

calls = 0


def hanging(policy: Policy, batch: Batch) -> Terms:
    """REINFORCE. The first process that reaches its eighth call creates the file $HANGING_ONCE and hangs."""
    global calls
    calls += 1
    once = Path(os.environ["HANGING_ONCE"])
    if calls == 8 and not once.exists():
        once.touch()
        never_released()
    return reinforce(policy, batch)


def never_released() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
