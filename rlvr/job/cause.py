"""The cause (rlvr/ledger/cause.py) that an exception stands for: its own, or that of a class which cannot carry one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rlvr.ledger import cause
from rlvr.ledger.cause import Cause

# Of torch and Python. The nearest class in the exception's line counts: a UnicodeError is a ValueError.
_CAUSES: Mapping[type[BaseException], Cause] = {
    torch.OutOfMemoryError: Cause.GPU_OOM,
    MemoryError: Cause.HOST_OOM,
    FloatingPointError: Cause.DIVERGED,
    ValueError: Cause.USER_ERROR,
}


def cause_of(error: BaseException) -> Cause:
    """ERROR for an exception that neither carries a cause nor is of a class above."""
    carried = cause.cause_of(error)
    if carried is not Cause.ERROR:
        return carried
    return next((_CAUSES[cls] for cls in type(error).__mro__ if cls in _CAUSES), Cause.ERROR)
