"""The actors of Ray: one starts a vLLM where it was placed and passes messages on; on a node without ranks one holds
the weights and one judges answers. Imports no torch and no Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlvr.records import Problem, Reward, Task
from rlvr.rollout.broadcast import LOOPBACK, nccl_towards
from rlvr.rollout.child import Child
from rlvr.rollout.memory import Memory
from rlvr.rollout.ray_node import ADDRESS, is_loopback
from rlvr.rollout.rewards import rewards_of
from rlvr.rollout.vllm_server import Arrays


class ChildActor:
    """A Child, for one who holds this actor. It ends with the actor."""

    def __init__(self, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}  # Ray's choice
        if not is_loopback(address := environment.get(ADDRESS, LOOPBACK)):  # interfaces differ between nodes
            own |= nccl_towards(address)
        self.child = Child(python, script, options, {**environment, **own})

    def pids(self) -> tuple[int, int]:
        """Of the actor and of vLLM."""
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
        self._memory, self._version = Memory(), 0

    def write(self, data: NDArray[np.uint8], place: int) -> None:
        """A piece of them, from the byte `place` on. Until all have come what is held is no version."""
        self._version = 0
        self._memory.write(data, place)

    def complete(self, version: int) -> None:
        self._version = version

    def held(self) -> tuple[int, str]:
        """The version that is complete, 0 if none is, and the file that it lies in."""
        return self._version, self._memory.path


class JudgeActor:
    """A task of its own, whose verifying processes run on this node."""

    def __init__(self, config: Mapping[str, Any], paths: Sequence[str]) -> None:
        """config: of the task. paths: where a rank imports from; a task of a user's own lies there."""
        self._config, self._paths, self._task = config, paths, None

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """What the task cannot be made of here is raised where it is asked for, as what its verifier raises is."""
        if self._task is None:
            sys.path += [path for path in self._paths if path not in sys.path]
            from hydra.utils import instantiate

            self._task = cast(Task, instantiate(self._config, _convert_="all"))
        return rewards_of(self._task, answers)
