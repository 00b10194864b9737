"""The actor of Ray that starts a vLLM on the GPU it was given, and passes messages on. Imports no torch and no Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.rollout.child import Child
from rlvr.rollout.vllm_server import Arrays

# Ray reads them as it is imported, and its processes as they start.
GUARDED = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it listens on every address of the machine
    "RAY_AUTH_MODE": "token",  # loopback is everyone's on this machine, and Ray runs what it is sent
}


class ChildActor:
    """A Child, for one who holds this actor. It ends with the actor."""

    def __init__(self, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        gpu = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}  # Ray's choice
        self.child = Child(python, script, options, {**environment, **gpu})

    def pids(self) -> tuple[int, int]:
        """Of the actor and of vLLM."""
        return os.getpid(), self.child.pid

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.child.send(header, arrays, timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        return self.child.receive(timeout_s)

    def kill(self) -> int:
        return self.child.kill()
