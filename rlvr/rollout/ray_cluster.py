"""Ray on this node: places with a GPU each, and the vLLMs that live there in actors. The only file that imports Ray.

Import it no sooner than `rlvr.rollout.ray` does: Ray reads some of its environment as it is imported.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlvr.rollout.child import NOT_FOR_A_CHILD, Lost, environment_with
from rlvr.rollout.node import gpus_beside, visible_gpus
from rlvr.rollout.ray_actor import GUARDED, ChildActor
from rlvr.rollout.vllm_server import Arrays

PATIENCE_S = 120.0  # what an actor may take to start, and on top of what it waits for itself
GRACE_S = 5.0  # what an actor may take to end
STORE_BYTES = 2**28  # of Ray's shared memory: messages pass through it
SETTINGS = {
    **GUARDED,
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this process: Ray keeps the first that it sees
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill our actors for the memory that others of the node take
}


class Cluster:
    """Ray on this node, for this rank alone: a place with a GPU (on a CPU machine: a core) for each worker."""

    def __init__(self, workers: int, rank: int, ranks: int, device: torch.device) -> None:
        """workers: of this rank. rank, ranks: its number on this node, and how many the node has."""
        on_gpu = device.type == "cuda"
        self._need = {"num_cpus": int(not on_gpu), "num_gpus": int(on_gpu)}
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpus_beside(visible_gpus(), rank, ranks, workers))} if on_gpu else {}
        self._directory = tempfile.mkdtemp(prefix="rlvr-ray-")  # of sockets: its name must be short
        _init(SETTINGS | gpus, num_cpus=workers, num_gpus=workers * on_gpu, _temp_dir=self._directory)
        self._group = placement_group([{"GPU" if on_gpu else "CPU": 1}] * workers)
        if not self._group.wait(PATIENCE_S):
            self.close()
            raise RuntimeError(f"Ray has no room for {workers} workers: it has {ray.cluster_resources()}")

    def start(
        self, index: int, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> RemoteProcess:
        """A Child, started by an actor in place number `index`."""
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        actor = ray.remote(ChildActor).options(scheduling_strategy=place, max_restarts=0, **self._need)
        return RemoteProcess(actor.remote(python, script, options, environment))

    def close(self) -> None:
        ray.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)


class RemoteProcess:
    """A Child in an actor, to be talked to as if it were ours."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._process: psutil.Process | None = None  # of the actor, once it has been met

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self._get(self._actor.send.remote(header, arrays, timeout_s), timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        if self._process is None:  # vLLM may take long to start, an actor may not: a dead Ray starts none
            self._process = psutil.Process(self.pids()[0])
        return self._get(self._actor.receive.remote(timeout_s), timeout_s)

    def pids(self) -> tuple[int, int]:
        """Of the actor and of the Child."""
        return self._get(self._actor.pids.remote(), 0)

    @property
    def pid(self) -> int:
        return self.pids()[1]

    def kill(self) -> int:
        code = -int(signal.SIGKILL)
        if ray.is_initialized():  # else all of it is gone; to ask would start another one
            with contextlib.suppress(Lost):
                code = self._get(self._actor.kill.remote(), 0)
            ray.kill(self._actor)
        if self._process is not None:
            _, hanging = psutil.wait_procs([self._process], timeout=GRACE_S)
            for process in hanging:  # one that hangs does not hear of Ray
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return code

    def _get(self, answer: Any, timeout_s: float) -> Any:
        """Raises Lost if vLLM or its actor is."""
        try:
            return ray.get(answer, timeout=timeout_s + PATIENCE_S)
        except GetTimeoutError:
            raise Lost(f"its actor has said nothing for {timeout_s + PATIENCE_S:.0f} s") from None
        except RayActorError as error:
            raise Lost(f"its actor has died: {error}") from None
        except RayTaskError as error:
            if isinstance(error.cause, Lost):
                raise Lost(str(error.cause)) from None
            raise


def _init(environment: Mapping[str, str], **settings: Any) -> None:
    """Start Ray, and leave this process as it was: its signals and its environment are its own."""
    stops = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_A_CHILD)  # as of a Child: it outlives a signal to stop
    try:
        with environment_with(environment):
            ray.init(
                "local",
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
                **settings,
            )
    finally:
        signal.signal(signal.SIGTERM, stops)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
