"""A loss that raises a GPU's out-of-memory error for micro-batches of too many rows, without a GPU."""

import os

import torch

from rlvr.loss.reinforce import reinforce
from rlvr.objective.batch import Batch, Policy, Terms


def hungry(policy: Policy, batch: Batch, *, rows: int, rank: int) -> Terms:
    """REINFORCE, for micro-batches of at most `rows` responses on this rank, any number on others."""
    if len(batch.tokens) > rows and int(os.environ.get("RANK", "0")) == rank:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {len(batch.tokens)} rows")
    return reinforce(policy, batch)
