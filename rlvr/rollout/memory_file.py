"""A file in main memory through which the processes of one node share the weights. It lies in no directory."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


class MemoryFile:
    """An anonymous file in memory (memfd). It is freed when the last process that has it open closes it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("rlvr-weights")

    @property
    def path(self) -> str:
        """The path by which other processes of this node and user open the file, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        os.close(self.descriptor)


def write_at(descriptor: int, data: NDArray[np.uint8], offset: int) -> None:
    """Write the bytes to an open file, from `offset` on."""
    remaining = data.data
    while remaining:
        num_written = os.pwrite(descriptor, remaining, offset)  # at most 2 GB per call
        remaining, offset = remaining[num_written:], offset + num_written
