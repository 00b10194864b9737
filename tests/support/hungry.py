"""A loss that takes as much GPU memory as it has rows: the out-of-memory error of a GPU, without one."""

from __future__ import annotations

import os

import torch

from rlvr.loss.reinforce import reinforce
from rlvr.objective.batch import Batch, Policy, Terms


def hungry(policy: Policy, batch: Batch, *, rows: int, rank: int = 0) -> Terms:
    """REINFORCE, for micro-batches of at most `rows` responses on this rank, any number on others."""
    if len(batch.tokens) > rows and int(os.environ.get("RANK", "0")) == rank:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {len(batch.tokens)} rows")
    return reinforce(policy, batch)
