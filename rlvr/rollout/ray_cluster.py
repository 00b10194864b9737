"""Ray over the nodes of a job: places with GPUs, and actors in these that run vLLMs. The only file that imports Ray.

Import this module only where `rlvr.rollout.ray` does: Ray reads parts of its environment on import.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util import get_placement_group
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlvr.rollout.child import ProcessLost, environment_with, signals_blocked
from rlvr.rollout.ray_actor import ChildActor
from rlvr.rollout.ray_node import (
    ADDRESS,
    NODE_LABEL,
    NODE_TIMEOUT_S,
    TOKEN,
    RayNode,
    free_address,
    new_token,
    ray_environment,
)
from rlvr.rollout.vllm_server import Arrays

ACTOR_TIMEOUT_S = 120.0  # for an actor to start, and in addition to the timeouts of its own calls
POLL_S = 1.0
GRACE_S = 5.0  # for an actor to end
PLACES = "rlvr-workers"  # name of the placement group of a run
OWN_TOKEN = new_token()  # used if the environment has no token; one per process, as Ray keeps the first that it reads


class Cluster:
    """The Ray of this job. Each worker has a place: GPUs of one node (without GPUs: a core)."""

    def __init__(self, workers: int, gpus_each: int, rank: int, device: torch.device) -> None:
        """workers: of all ranks, with `gpus_each` GPUs each. The first rank creates their places."""
        on_gpu = device.type == "cuda"
        self._resources = {"num_cpus": int(not on_gpu), "num_gpus": gpus_each * on_gpu}
        self._own: RayNode | None = None  # of a run of one process that was started without Ray
        with environment_with({TOKEN: os.environ.get(TOKEN, OWN_TOKEN)}):
            if ADDRESS not in os.environ:
                self._own = RayNode(free_address(), 0, 1, workers)
            _connect(os.environ[ADDRESS] if self._own is None else self._own.address)
        if rank == 0:
            places = [{"GPU": float(gpus_each)} if on_gpu else {"CPU": 1.0}] * workers
            self._group = placement_group(places, strategy="SPREAD", name=PLACES)
        else:
            self._group = get_placement_group(PLACES)
        if not self._group.wait(NODE_TIMEOUT_S if self._own is None else ACTOR_TIMEOUT_S):
            resources = ray.cluster_resources()  # before Ray is closed
            self.close()
            raise RuntimeError(f"Ray has no room for {workers} workers: it has {resources}")
        self._this_node = ray.get_runtime_context().get_node_id()

    def nodes(self) -> list[int]:
        """By place, the number of its node."""
        numbers = {node["NodeID"]: int(node["Labels"][NODE_LABEL]) for node in ray.nodes() if node["Alive"]}
        return [numbers[node] for node in self._places()]

    def _places(self) -> list[str]:
        """By place, Ray's id of its node."""
        table = placement_group_table(self._group)["bundles_to_node_id"]
        return [table[index] for index in range(len(table))]

    def start(
        self, index: int, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> RemoteProcess:
        """Start a Child by an actor in place number `index`."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        settings = {"max_concurrency": 4, **self._resources}  # messages are sent while a call waits for an answer
        actor = ray.remote(ChildActor).options(scheduling_strategy=strategy, max_restarts=0, **settings)
        is_local = self._places()[index] == self._this_node
        return RemoteProcess(actor.remote(python, script, options, environment), is_local=is_local)

    def close(self) -> None:
        ray.shutdown()
        if self._own is not None:
            self._own.close()


class RemoteProcess:
    """A Child in an actor, with the interface of a local one."""

    def __init__(self, actor: Any, *, is_local: bool) -> None:
        """is_local: whether the actor is on this node."""
        self._actor, self._is_local, self._is_running = actor, is_local, False
        self._process: psutil.Process | None = None  # of the actor, if it is on this node

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        answer_of(self._actor.send.remote(header, arrays, timeout_s), timeout_s + ACTOR_TIMEOUT_S)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        if not self._is_running:  # vLLM may take long to start, its actor may not: else a dead Ray would go unnoticed
            actor, _ = self.pids()
            self._is_running, self._process = True, psutil.Process(actor) if self._is_local else None
        return answer_of(self._actor.receive.remote(timeout_s), timeout_s + ACTOR_TIMEOUT_S)

    def pids(self) -> tuple[int, int]:
        """Process ids of the actor and of the Child."""
        return answer_of(self._actor.pids.remote(), ACTOR_TIMEOUT_S)

    def kill(self) -> int:
        code = -int(signal.SIGKILL)
        if ray.is_initialized():  # otherwise everything has ended, and a call would start a new Ray
            with contextlib.suppress(ProcessLost):
                code = answer_of(self._actor.kill.remote(), ACTOR_TIMEOUT_S)
            ray.kill(self._actor)
        if self._process is not None:
            _, hanging = psutil.wait_procs([self._process], timeout=GRACE_S)
            for process in hanging:  # a hanging process does not respond to Ray
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return code


def answer_of(call: Any, timeout_s: float) -> Any:
    """The answer of an actor's call. Raises ProcessLost if the actor or its vLLM is lost."""
    try:
        return ray.get(call, timeout=timeout_s)
    except GetTimeoutError:
        raise ProcessLost(f"its actor has not answered for {timeout_s:.0f} s") from None
    except (RayActorError, ActorUnschedulableError, ObjectLostError) as error:
        raise ProcessLost(f"its actor or node was lost: {error}") from None
    except RayTaskError as error:
        if isinstance(error.cause, ProcessLost):
            raise ProcessLost(str(error.cause)) from None
        raise


def _connect(address: str) -> None:
    deadline = time.monotonic() + NODE_TIMEOUT_S
    while not ray.is_initialized():
        try:
            _init(address)
        except (ConnectionError, RuntimeError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Ray does not answer at {address}: {error}") from error
            time.sleep(POLL_S)


def _init(address: str) -> None:
    """Join Ray, and restore this process's signal handlers and environment, which Ray changes."""
    sigterm_handler = signal.getsignal(signal.SIGTERM)
    with signals_blocked():  # as for a Child: Ray's processes must outlive a signal to stop
        try:
            with environment_with(ray_environment(address)):
                ray.init(address, namespace=PLACES, log_to_driver=False, configure_logging=False)
        finally:
            signal.signal(signal.SIGTERM, sigterm_handler)
