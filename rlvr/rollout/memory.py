"""A file of memory in which the processes of one node read the weights. It belongs to no directory."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


class Memory:
    """Gone with the last process that has it open."""

    def __init__(self) -> None:
        self._file = os.memfd_create("rlvr-weights")

    @property
    def path(self) -> str:
        """For other processes of this node and user, while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def number(self) -> int:
        """The file descriptor, in this process."""
        return self._file

    def write(self, data: NDArray[np.uint8], place: int) -> None:
        """From the byte `place` on."""
        write(self._file, data, place)

    def close(self) -> None:
        os.close(self._file)


def write(file: int, data: NDArray[np.uint8], place: int) -> None:
    """To an open file, from the byte `place` on."""
    rest = data.data
    while rest:
        count = os.pwrite(file, rest, place)  # 2 GB at most
        rest, place = rest[count:], place + count
