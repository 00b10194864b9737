"""The ranks of a run that share one node, its GPUs and its memory; and small exchanges of numbers between ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from rlvr.rollout.gpu_names import named_gpus


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
    by_rank = _all_gather(numbers)
    if not has_several_ranks():
        return by_rank[0]
    return by_rank[dist.get_rank() - rank_on_node()[0]]  # ranks are numbered node by node


def _all_gather(numbers: Sequence[int]) -> list[list[int]]:
    """The numbers of each rank, by rank."""
    if not has_several_ranks():
        return [list(numbers)]
    by_rank = [torch.zeros(len(numbers), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(by_rank, torch.tensor(numbers, dtype=torch.int64))
    return [tensor.tolist() for tensor in by_rank]


def broadcast_number(number: int) -> int:
    """The `number` of the run's first rank. Called by all ranks together."""
    return gather_numbers(number)[0]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = named_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return names or [str(index) for index in range(torch.cuda.device_count())]


def worker_gpus(gpus: Sequence[str], rank: int, ranks: int, workers: int) -> Sequence[str]:
    """The GPUs of a node that the workers of one of its ranks use. The ranks themselves use the first ones.

    ranks: number of ranks of the node. workers: of each rank. Raises RuntimeError if the node has too few GPUs.
    """
    if len(gpus) < ranks + ranks * workers:
        raise RuntimeError(f"{len(gpus)} GPUs for the {ranks} ranks and {ranks * workers} workers of this node")
    return gpus[ranks + rank * workers :][:workers]
