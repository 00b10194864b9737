"""The weights in a node's main memory, once: every rank writes a part, any process of the node reads all of it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rlvr.rollout.node import broadcast_on_node, has_several_ranks, rank_on_node

ALIGNMENT = 64  # bytes


class NodeWeights:
    """The newest weights, in a memory file of the node's first rank, until the next ones are written."""

    def __init__(self) -> None:
        # Descriptor of an anonymous file, which is freed when the last process that has it open closes it.
        self._memory: int | None = None  # on the first rank of a node only

    def write(self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, Any]:
        """Write the weights; called by all ranks of the run together. Returns the file and, per tensor, name, dtype,
        shape and offset. No process may read the file before this returns: until then the weights are incomplete.

        weights: (Hugging Face parameter name, full tensor) pairs, in any float format.
        """
        pid, descriptor = broadcast_on_node(self._location())  # all ranks have arrived: the old ones may go
        file = f"/proc/{pid}/fd/{descriptor}"
        descriptions = _write(weights, dtype, file)
        if has_several_ranks():
            dist.barrier()  # every rank has written its part
        return {"file": file, "tensors": descriptions}

    def close(self) -> None:
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _location(self) -> tuple[int, int]:
        """The process id and file descriptor of the memory on the node's first rank; zeros on the others."""
        if rank_on_node()[0]:
            return 0, 0
        if self._memory is None:
            self._memory = os.memfd_create("rlvr-weights")
        return os.getpid(), self._memory


def _write(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, file: str) -> list[Any]:
    """Write this rank's part of the tensors, one after the other. Returns name, dtype, shape and offset of all."""
    rank, ranks = rank_on_node()
    descriptions, offset = list[Any](), 0
    with Path(file).open("r+b", buffering=0) as memory:
        for index, (name, tensor) in enumerate(weights):
            descriptions.append([name, str(dtype).split(".")[1], list(tensor.shape), offset])
            if index % ranks == rank:
                data = tensor.detach().to(dtype).contiguous().cpu().view(-1).view(torch.uint8).numpy()
                _write_at(memory.fileno(), data, offset)
            size = tensor.numel() * dtype.itemsize
            offset += -(-size // ALIGNMENT) * ALIGNMENT
    return descriptions


def _write_at(descriptor: int, data: NDArray[np.uint8], offset: int) -> None:
    remaining = data.data
    while remaining:
        num_written = os.pwrite(descriptor, remaining, offset)  # at most 2 GB per call
        remaining, offset = remaining[num_written:], offset + num_written
