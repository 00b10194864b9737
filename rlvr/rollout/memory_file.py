"""A file in main memory through which the processes of one node share the weights. It lies in no directory."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


class MemoryFile:
    """An anonymous file in memory (memfd). It is freed when the last process that has it open closes it."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("rlvr-weights")

    @property
    def path(self) -> str:
        """The path by which other processes of this node and user open the file, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def descriptor(self) -> int:
        """The file descriptor, valid in this process."""
        return self._descriptor

    def write(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write the bytes from `offset` on."""
        write_at(self._descriptor, data, offset)

    def close(self) -> None:
        os.close(self._descriptor)


def write_at(descriptor: int, data: NDArray[np.uint8], offset: int) -> None:
    """Write the bytes to an open file, from `offset` on."""
    remaining = data.data
    while remaining:
        num_written = os.pwrite(descriptor, remaining, offset)  # at most 2 GB per call
        remaining, offset = remaining[num_written:], offset + num_written
