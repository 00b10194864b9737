"""The actors of Ray: one starts a vLLM and relays messages, one stores weights. Imports no torch and no Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvr.rollout.broadcast import LOOPBACK, nccl_towards
from rlvr.rollout.child import Child
from rlvr.rollout.memory_file import MemoryFile, write_at
from rlvr.rollout.ray_node import ADDRESS, is_loopback
from rlvr.rollout.vllm_server import Arrays


class ChildActor:
    """A Child that is used through this actor. It ends with the actor."""

    def __init__(self, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        of_node = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}  # assigned by Ray
        address = environment.get(ADDRESS, LOOPBACK)
        if not is_loopback(address):  # interfaces differ between nodes
            of_node |= nccl_towards(address)
        self.child = Child(python, script, options, {**environment, **of_node})

    def pids(self) -> tuple[int, int]:
        """Process ids of the actor and of vLLM."""
        return os.getpid(), self.child.pid

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.child.send(header, arrays, timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        return self.child.receive(timeout_s)

    def kill(self) -> int:
        return self.child.kill()


class WeightsActor:
    """One copy of the weights, for all vLLMs of its node."""

    def __init__(self) -> None:
        self._memory, self._version = MemoryFile(), 0

    def write(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write a piece of the weights at `offset`. No version is complete until all pieces are written."""
        self._version = 0
        write_at(self._memory.descriptor, data, offset)

    def complete(self, version: int) -> None:
        self._version = version

    def held(self) -> tuple[int, str]:
        """The complete version, 0 if there is none, and the file that contains it."""
        return self._version, self._memory.path
