"""The ranks of one node among those of a run: they share its GPUs and see one another's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist


def several() -> bool:
    """Has the run more than one rank?"""
    return dist.is_initialized() and dist.get_world_size() > 1


def on_node() -> tuple[int, int]:
    """(number of this rank, how many there are) on this node."""
    return (int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])) if several() else (0, 1)


def of_all(mine: int) -> list[int]:
    """The number of every rank of the run, on every rank. All of them together."""
    return [number for (number,) in _everyone([mine])]


def from_first(mine: Sequence[int]) -> list[int]:
    """The numbers of this node's first rank, on every rank of it. All ranks of the run together, with as many each."""
    return _everyone(mine)[dist.get_rank() - on_node()[0] if several() else 0]  # ranks are numbered node by node


def _everyone(mine: Sequence[int]) -> list[list[int]]:
    """By rank."""
    if not several():
        return [list(mine)]
    everyone = [torch.zeros(len(mine), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, torch.tensor(mine, dtype=torch.int64))
    return [each.tolist() for each in everyone]


def of_first_rank(mine: int) -> int:
    """The number of the run's first rank, on every rank. All of them together."""
    return of_all(mine)[0]


def visible_gpus() -> list[str]:
    """The GPUs that this run was given, as CUDA_VISIBLE_DEVICES names them."""
    named = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return named or [str(index) for index in range(torch.cuda.device_count())]


def gpus_beside(gpus: Sequence[str], rank: int, ranks: int, workers: int) -> Sequence[str]:
    """Those of a node for the workers of one of its ranks: the ranks have the first ones."""
    if len(gpus) < ranks + ranks * workers:
        raise RuntimeError(f"{len(gpus)} GPUs for the {ranks} ranks and {ranks * workers} workers of this node")
    return gpus[ranks + rank * workers :][:workers]
