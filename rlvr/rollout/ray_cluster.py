"""Ray over the nodes of a job: places with GPUs, and actors in these that run vLLMs. The only file that imports Ray.

Import this module only where `rlvr.rollout.ray` does: Ray reads parts of its environment on import.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util import get_placement_group
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlvr.records import EngineLost
from rlvr.rollout.child import BLOCKED_SIGNALS, ProcessLost, environment_with
from rlvr.rollout.ray_actor import ChildActor, WeightsActor
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

log = logging.getLogger("rlvr.ray")

ACTOR_TIMEOUT_S = 120.0  # for an actor to start, and in addition to the timeouts of its own calls
POLL_S = 1.0
GRACE_S = 5.0  # for an actor to end
PLACES = "rlvr-workers"  # name of the placement group of a run
PIECE_BYTES = 2**25  # size of one piece of weights sent to another node
PIECES = 4  # sent at a time
OWN_TOKEN = new_token()  # used if the environment has no token; one per process, as Ray keeps the first that it reads


class Cluster:
    """The Ray of this job. Each worker has a place: GPUs of one node (without GPUs: a core)."""

    def __init__(self, workers: int, gpus_each: int, rank: int, device: torch.device) -> None:
        """workers: of all ranks, with `gpus_each` GPUs each. The first rank creates their places."""
        on_gpu = device.type == "cuda"
        self._resources = {"num_cpus": int(not on_gpu), "num_gpus": gpus_each * on_gpu}
        self._file_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._holders: dict[str, Any] = {}  # actors that store weights, by node
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

    # --- places ---

    def nodes(self) -> list[int]:
        """By place, the number of its node; -1 if the place has none."""
        labels = _alive()
        return [labels.get(node, -1) for node in self._places()]

    def _places(self) -> list[str]:
        """By place, Ray's id of its node; "" if it has none."""
        table = placement_group_table(self._group)["bundles_to_node_id"]
        return [table[index] for index in range(len(table))]

    def _node_of(self, index: int) -> str:
        """Ray's id of the node of place number `index`. Raises EngineLost if that node is lost."""
        node = self._places()[index]
        if node not in _alive():
            raise EngineLost(
                f"the node of worker {index} is lost: a new attempt of the run continues from its checkpoint"
            )
        return node

    def start(
        self, index: int, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> RemoteProcess:
        """Start a Child by an actor in place number `index`. Raises EngineLost if its node is lost."""
        is_local = self._node_of(index) == self._this_node
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        settings = {"max_concurrency": 4, **self._resources}  # messages are sent while a call waits for an answer
        actor = ray.remote(ChildActor).options(scheduling_strategy=strategy, max_restarts=0, **settings)
        handle = actor.remote(python, script, options, environment)
        return RemoteProcess(handle, lambda: self._node_of(index), is_local=is_local)

    # --- weights ---

    def send_weights(self, weights: Mapping[str, Any], version: int, places: Sequence[int]) -> None:
        """Send the weights to the other nodes of these places. What fails is repeated when it is needed."""
        all_places = self._places()
        for node in dict.fromkeys(all_places[index] for index in places):
            if node not in ("", self._this_node):
                with contextlib.suppress(ProcessLost):
                    self._file_on(node, weights, version)

    def weights_for(self, index: int, weights: dict[str, Any], version: int) -> dict[str, Any]:
        """`Host.locate` for place number `index`. Raises ProcessLost or EngineLost."""
        node = self._node_of(index)
        if node == self._this_node:
            return weights
        return {**weights, "file": self._file_on(node, weights, version)}

    def _file_on(self, node: str, weights: Mapping[str, Any], version: int) -> str:
        with self._file_locks[node]:
            if node not in self._holders:
                self._holders[node] = _weights_actor(node)
            try:
                return _file_with_version(self._holders[node], weights["file"], version)
            except ProcessLost:
                del self._holders[node]
                raise

    def close(self) -> None:
        ray.shutdown()
        if self._own is not None:
            self._own.close()


def _alive() -> dict[str, int]:
    """The number of each node that is alive, by Ray's id of it."""
    return {node["NodeID"]: int(node["Labels"][NODE_LABEL]) for node in ray.nodes() if node["Alive"]}


def _weights_actor(node: str) -> Any:
    """The actor that stores weights on a node, shared by all ranks; it lives as long as one of them has the handle."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"name": f"rlvr-weights-{node}", "get_if_exists": True, "num_cpus": 0}
    return ray.remote(WeightsActor).options(scheduling_strategy=strategy, **options).remote()


def _file_with_version(holder: Any, weights: str, version: int) -> str:
    """The file of a WeightsActor, once it contains this version. weights: the file of this node to copy it from."""
    held_version, file = answer_of(holder.held.remote(), ACTOR_TIMEOUT_S)
    if held_version != version:
        began = time.monotonic()
        size = _send(holder, Path(weights))
        answer_of(holder.complete.remote(version), ACTOR_TIMEOUT_S)
        log.info("%.3f GB of weights sent to another node in %.1f s", size / 1e9, time.monotonic() - began)
    return file


def _send(actor: Any, file: Path) -> int:
    """Send the bytes of a file to a WeightsActor, a few pieces at a time. Returns their number."""
    underway: list[Any] = []
    offset = 0
    with file.open("rb") as pieces:
        while piece := pieces.read(PIECE_BYTES):
            if len(underway) == PIECES:
                answer_of(underway.pop(0), ACTOR_TIMEOUT_S)
            underway.append(actor.write.remote(np.frombuffer(piece, np.uint8), offset))
            offset += len(piece)
    for call in underway:
        answer_of(call, ACTOR_TIMEOUT_S)
    return offset


class RemoteProcess:
    """A Child in an actor, with the interface of a local one."""

    def __init__(self, actor: Any, check_place: Callable[[], object], *, is_local: bool) -> None:
        """check_place: raises EngineLost if the actor's node is lost. is_local: whether the actor is on this node."""
        self._actor, self._check_place, self._is_local = actor, check_place, is_local
        self._is_running = False
        self._process: psutil.Process | None = None  # of the actor, if it is on this node

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        answer_of(self._actor.send.remote(header, arrays, timeout_s), timeout_s + ACTOR_TIMEOUT_S)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        # vLLM may take long to start, its actor may not: without this check a dead Ray would go unnoticed
        if not self._is_running:
            self._await_actor()
        return answer_of(self._actor.receive.remote(timeout_s), timeout_s + ACTOR_TIMEOUT_S)

    def _await_actor(self) -> None:
        """Wait until the actor runs. Raises EngineLost as soon as its node is known to be lost."""
        answer, deadline = self._actor.pids.remote(), time.monotonic() + ACTOR_TIMEOUT_S
        while not ray.wait([answer], timeout=POLL_S)[0]:
            try:
                self._check_place()
            except EngineLost:
                ray.kill(self._actor)  # calls of an actor that never starts would wait
                raise
            if time.monotonic() > deadline:
                break
        pid, _ = answer_of(answer, POLL_S)
        self._is_running, self._process = True, psutil.Process(pid) if self._is_local else None

    def pids(self) -> tuple[int, int]:
        """Process ids of the actor and of the Child."""
        return answer_of(self._actor.pids.remote(), ACTOR_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self.pids()[1]

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
    except (RayActorError, ActorUnschedulableError) as error:
        raise ProcessLost(f"its actor was lost: {error}") from None
    except ObjectLostError as error:
        raise ProcessLost(f"its node was lost with the answer: {error}") from None
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
    # As for a Child: Ray's processes must outlive a signal to stop.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        with environment_with(ray_environment(address)):
            ray.init(address, namespace=PLACES, log_to_driver=False, configure_logging=False)
    finally:
        signal.signal(signal.SIGTERM, sigterm_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
