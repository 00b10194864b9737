"""The actor of Ray that starts a vLLM and relays messages. Imports no torch and no Ray."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.rollout.broadcast import LOOPBACK, nccl_towards
from rlvr.rollout.child import Child
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
        return os.getpid(), self.child.process.pid

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.child.send(header, arrays, timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        return self.child.receive(timeout_s)

    def kill(self) -> int:
        return self.child.kill()
