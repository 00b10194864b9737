"""What the ranks of a run tell one another: JSON or bytes. Nothing that comes through a socket is unpickled."""

from __future__ import annotations

import json
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def several() -> bool:
    """Has the run more than one rank?"""
    return dist.is_initialized() and dist.get_world_size() > 1


def gather(mine: list[T], group: dist.ProcessGroup | None = None) -> list[list[T]]:
    """Every rank's list of JSON values, in the order of ranks, on every rank."""
    if not several():
        return [mine]
    return [json.loads(each) for each in gather_bytes(json.dumps(mine).encode(), group)]


def gather_bytes(mine: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """Every rank's bytes, in the order of ranks, on every rank of a run that has several."""
    own = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group)
    lengths = [int(size) for size in sizes]
    padded = torch.nn.functional.pad(own, (0, max(lengths) - len(mine)))
    everyone = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(everyone, padded, group)
    return [each[:length].numpy().tobytes() for each, length in zip(everyone, lengths, strict=True)]
