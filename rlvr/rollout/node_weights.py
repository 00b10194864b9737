"""The weights of a node, once in its main memory: every rank writes a part, and any process of the node reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.rollout.memory import Memory, write
from rlvr.rollout.node import from_first, on_node, several

ALIGNMENT = 64  # bytes


class NodeWeights:
    """In memory of the node's first rank, until the next ones are written."""

    def __init__(self) -> None:
        self._memory: Memory | None = None  # of a node's first rank

    def write(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, Any]:
        """(Hugging Face parameter name, full tensor) pairs, in any float format; all ranks of the run together. Returns
        the file and name, dtype, shape and place of each tensor. Until then nobody may read: they are not all there.
        """
        process, memory = from_first(self._own())  # all ranks are here: nobody still needs the old ones
        file = f"/proc/{process}/fd/{memory}"
        described = _write(weights, dtype, file)
        if several():
            dist.barrier()  # all of it is there
        return {"file": file, "tensors": described}

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _own(self) -> tuple[int, int]:
        """The process and descriptor of the memory, of the first rank; else zeros."""
        if on_node()[0]:
            return 0, 0
        if self._memory is None:
            self._memory = Memory()
        return os.getpid(), self._memory.number


def _write(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, file: str) -> list[Any]:
    """One after the other; of those this rank its part."""
    rank, ranks = on_node()
    described, place = list[Any](), 0
    with Path(file).open("r+b", buffering=0) as memory:
        for index, (name, tensor) in enumerate(weights):
            described.append([name, str(dtype).split(".")[1], list(tensor.shape), place])
            if index % ranks == rank:
                data = tensor.detach().to(dtype).contiguous().cpu().view(-1).view(torch.uint8).numpy()
                write(memory.fileno(), data, place)
            size = tensor.numel() * dtype.itemsize
            place += -(-size // ALIGNMENT) * ALIGNMENT
    return described
