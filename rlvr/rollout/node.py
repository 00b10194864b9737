"""Small exchanges of numbers between the ranks of a run, and which of them share a node."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist


def has_several_ranks() -> bool:
    """Whether the run has more than one rank."""
    return dist.is_initialized() and dist.get_world_size() > 1


def rank_on_node() -> tuple[int, int]:
    """(number of this rank on this node, number of ranks on this node)."""
    return (int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])) if has_several_ranks() else (0, 1)


def gather_numbers(number: int) -> list[int]:
    """The `number` of each rank, by rank. Called by all ranks together."""
    return [value for (value,) in _all_gather([number])]


def broadcast_on_node(numbers: Sequence[int]) -> list[int]:
    """The numbers of this node's first rank. Called by all ranks of the run together, with equally many numbers."""
    rank = dist.get_rank() if has_several_ranks() else 0
    return _all_gather(numbers)[rank - rank_on_node()[0]]  # ranks are numbered node by node


def _all_gather(numbers: Sequence[int]) -> list[list[int]]:
    if not has_several_ranks():
        return [list(numbers)]
    by_rank = [torch.zeros(len(numbers), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(by_rank, torch.tensor(numbers, dtype=torch.int64))
    return [tensor.tolist() for tensor in by_rank]


def broadcast_number(number: int) -> int:
    """The `number` of the run's first rank. Called by all ranks together."""
    return gather_numbers(number)[0]
