"""A loss that takes as much GPU memory as it has rows: the out-of-memory error of a GPU, without one."""

from __future__ import annotations

import torch

from rlvr.batch import Batch, Policy, Terms
from rlvr.loss.reinforce import reinforce


def hungry(policy: Policy, batch: Batch, *, rows: int) -> Terms:
    """REINFORCE, for micro-batches of at most `rows` responses."""
    if len(batch.tokens) > rows:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {len(batch.tokens)} rows")
    return reinforce(policy, batch)
