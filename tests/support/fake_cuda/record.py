"""Counts of events on the fake GPU: waits of the host, and attention kernels."""

from __future__ import annotations

import sys
from collections import Counter
from typing import NamedTuple


class Wait(NamedTuple):
    operation: str
    where: str  # the innermost line of the program


class Kernel(NamedTuple):
    """Kernel of a call of attention: flash, varlen, efficient (scores never in memory), or math (scores in memory)."""

    name: str
    dtype: str


waits: Counter[Wait] = Counter()
kernels: Counter[Kernel] = Counter()


def clear() -> None:
    waits.clear()
    kernels.clear()


def wait(operation: str) -> None:
    waits[Wait(operation, _line())] += 1


def _line() -> str:
    """The innermost line of rlvr on the stack, or else the innermost one at all."""
    frame = sys._getframe(1)
    innermost = "?"
    while frame is not None:
        file = frame.f_code.co_filename
        if "/fake_cuda/" not in file:
            place = f"{'/'.join(file.split('/')[-2:])}:{frame.f_lineno}"
            if "/rlvr/" in file and "site-packages" not in file:
                return place
            innermost = place if innermost == "?" else innermost
        frame = frame.f_back
    return innermost
