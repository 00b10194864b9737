"""Ray over the nodes of a job: places with a GPU each, and the vLLMs that live there in actors. The only file that
imports Ray.

Import it no sooner than `rlvr.rollout.ray` does: Ray reads some of its environment as it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import signal
import sys
import tempfile
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

from rlvr.records import Judge, Problem, Reward
from rlvr.rollout.broadcast import LOOPBACK
from rlvr.rollout.child import NOT_FOR_A_CHILD, Lost, environment_with
from rlvr.rollout.node import gpus_beside, visible_gpus
from rlvr.rollout.ray_actor import ChildActor, JudgeActor, WeightsActor
from rlvr.rollout.ray_node import ADDRESS, MEET_S, NODE_LABEL, STORE_BYTES, TOKEN, NoPlace, guarded, new_token
from rlvr.rollout.vllm_server import Arrays

log = logging.getLogger("rlvr.ray")

PATIENCE_S = 120.0  # what an actor may take to start, and on top of what it waits for itself
LOOK_S = 1.0
JUDGE_S = 24 * 3600.0  # for a part of a batch: each answer has the task's own limit
GRACE_S = 5.0  # what an actor may take to end
PLACES = "rlvr-workers"  # name of the placement group of a run
PIECE_BYTES = 2**25  # of weights, on their way to another node
PIECES = 4  # on their way at a time
OWN_TOKEN = new_token()  # of this process, where nobody has given it one: Ray keeps the first that it sees


class Cluster:
    """The Ray of this job, or one of this process alone: a place with GPUs (on a CPU machine: a core) per worker."""

    def __init__(self, workers: int, gpus_each: int, rank: int, device: torch.device) -> None:
        """workers: of all ranks, each with so many GPUs of one node. The first rank has their places put on the nodes;
        the others come later.
        """
        on_gpu = device.type == "cuda"
        self._need = {"num_cpus": int(not on_gpu), "num_gpus": gpus_each * on_gpu}
        self._directory = ""
        self._filling: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._holders: dict[str, Any] = {}  # of weights, by node
        self._judges: dict[str, Any] = {}  # by node
        if address := os.environ.get(ADDRESS):
            _connect(address)
        else:
            self._start_here(workers, gpus_each * on_gpu)
        if rank == 0:
            places = [{"GPU": float(gpus_each)} if on_gpu else {"CPU": 1.0}] * workers
            self._group = placement_group(places, strategy="SPREAD", name=PLACES)
        else:
            self._group = get_placement_group(PLACES)
        if not self._group.wait(MEET_S if address else PATIENCE_S):
            self.close()
            raise RuntimeError(f"Ray has no room for {workers} workers: it has {ray.cluster_resources()}")
        self._here = ray.get_runtime_context().get_node_id()

    def _start_here(self, workers: int, gpus_each: int) -> None:
        """Of a run of one process, which nobody has started a Ray for. gpus_each: 0 on a CPU machine."""
        num_gpus = workers * gpus_each
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpus_beside(visible_gpus(), 0, 1, num_gpus))} if num_gpus else {}
        self._directory = tempfile.mkdtemp(prefix="rlvr-ray-")  # of sockets: its name must be short
        _init(
            {**guarded(LOOPBACK), TOKEN: OWN_TOKEN, **gpus},
            "local",
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            num_cpus=workers,
            num_gpus=num_gpus,
            labels={NODE_LABEL: "0"},
            _temp_dir=self._directory,
        )

    # --- places ---

    def nodes(self) -> list[int]:
        """Number of the node of each place."""
        labels = _alive()
        return [labels.get(node, -1) for node in self._places()]

    def has(self, index: int) -> bool:
        """Is place number `index` on a node that is there?"""
        return self._places()[index] in _alive()

    def _places(self) -> list[str]:
        """Ray's name of the node of each place; "" where it has none."""
        table = placement_group_table(self._group)["bundles_to_node_id"]
        return [table[index] for index in range(len(table))]

    def _node_of(self, index: int) -> str:
        """NoPlace while Ray looks for another node for place number `index`."""
        node = self._places()[index]
        if node not in _alive():
            raise NoPlace(f"worker {index} has no place")
        return node

    def start(
        self, index: int, python: str, script: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> RemoteProcess:
        """A Child, started by an actor in place number `index`. NoPlace if there is none now."""
        here = self._node_of(index) == self._here
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        # It is told something while it waits for an answer.
        threads = {"max_concurrency": 4}
        actor = ray.remote(ChildActor).options(scheduling_strategy=place, max_restarts=0, **threads, **self._need)
        return RemoteProcess(actor.remote(python, script, options, environment), lambda: self.has(index), here=here)

    # --- weights ---

    def send_weights(self, weights: Mapping[str, Any], version: int, places: Sequence[int]) -> None:
        """To the nodes of these places but this one: one copy each. What fails is tried again when it is wanted."""
        all_places = self._places()
        for node in dict.fromkeys(all_places[index] for index in places):
            if node not in ("", self._here):
                with contextlib.suppress(Lost):
                    self._file_on(node, weights, version)

    def weights_for(self, index: int, weights: Mapping[str, Any], version: int) -> dict[str, Any]:
        """What a vLLM in place number `index` is told of the weights that lie in a file of this node. Raises Lost or
        NoPlace.
        """
        node = self._node_of(index)
        return {**weights, "file": weights["file"] if node == self._here else self._file_on(node, weights, version)}

    def _file_on(self, node: str, weights: Mapping[str, Any], version: int) -> str:
        """The file of another node that holds them, written if it does not yet."""
        with self._filling[node]:
            if node not in self._holders:
                self._holders[node] = _actor_on(node, WeightsActor, "weights")
            try:
                return _filled(self._holders[node], weights["file"], version)
            except Lost:
                del self._holders[node]
                raise

    # --- judging ---

    def judges(self, task: Mapping[str, Any], *, first: int) -> list[Judge]:
        """On each node from number `first` on."""
        numbers = sorted(number for number in _alive().values() if number >= first)
        return [functools.partial(self._judge_on, number, task) for number in numbers]

    def _judge_on(self, number: int, task: Mapping[str, Any], answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """Raises Lost. A node that comes back has another name, and a new actor."""
        for node in [node for node, its in _alive().items() if its == number]:
            if node not in self._judges:
                self._judges[node] = _actor_on(node, JudgeActor, "judge", task, sys.path)
            try:
                return answer_of(self._judges[node].reward.remote(answers), JUDGE_S)
            except Lost:
                del self._judges[node]  # the next time another one is started
                raise
        raise Lost(f"node {number} is not there")

    def close(self) -> None:
        for judge in list(self._judges.values()) if ray.is_initialized() else []:
            ray.kill(judge)  # threads may wait for it
        ray.shutdown()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _alive() -> dict[str, int]:
    """The number of each node that is there, by Ray's name of it."""
    return {node["NodeID"]: int(node["Labels"][NODE_LABEL]) for node in ray.nodes() if node["Alive"]}


def _actor_on(node: str, kind: type, role: str, *settings: Any) -> Any:
    """The actor of that node in this role, which all ranks share; it lives as long as one of them keeps this."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    name = f"rlvr-{role}-{node}"
    actor = ray.remote(kind).options(scheduling_strategy=where, name=name, get_if_exists=True, num_cpus=0)
    return actor.remote(*settings)


def _filled(holder: Any, weights: str, version: int) -> str:
    """The file of a WeightsActor, once it holds this version, whose bytes lie in the file `weights` of this node."""
    held, file = answer_of(holder.held.remote(), PATIENCE_S)
    if held != version:
        began = time.monotonic()
        size = _send(holder, Path(weights))
        answer_of(holder.complete.remote(version), PATIENCE_S)
        log.info("%.3f GB of weights sent to another node in %.1f s", size / 1e9, time.monotonic() - began)
    return file


def _send(actor: Any, file: Path) -> int:
    """The bytes of a file to a WeightsActor, a few pieces at a time. Returns how many."""
    underway: list[Any] = []
    place = 0
    with file.open("rb") as pieces:
        while piece := pieces.read(PIECE_BYTES):
            if len(underway) == PIECES:
                answer_of(underway.pop(0), PATIENCE_S)
            underway.append(actor.write.remote(np.frombuffer(piece, np.uint8), place))
            place += len(piece)
    for each in underway:
        answer_of(each, PATIENCE_S)
    return place


class RemoteProcess:
    """A Child in an actor, to be talked to as if it were ours."""

    def __init__(self, actor: Any, has_place: Callable[[], bool], *, here: bool) -> None:
        """here: on this node."""
        self._actor, self._has_place, self._here = actor, has_place, here
        self._met = False
        self._process: psutil.Process | None = None  # of the actor, if it is one of this node

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        answer_of(self._actor.send.remote(header, arrays, timeout_s), timeout_s + PATIENCE_S)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        if not self._met:  # vLLM may take long to start, an actor may not: a dead Ray starts none
            self._meet()
        return answer_of(self._actor.receive.remote(timeout_s), timeout_s + PATIENCE_S)

    def _meet(self) -> None:
        """Wait until the actor runs. NoPlace as soon as it is known that it has nowhere to."""
        answer, deadline = self._actor.pids.remote(), time.monotonic() + PATIENCE_S
        while not ray.wait([answer], timeout=LOOK_S)[0]:
            if not self._has_place():
                ray.kill(self._actor)
                raise NoPlace("the node of a worker is lost")
            if time.monotonic() > deadline:
                break
        pid, _ = answer_of(answer, LOOK_S)
        self._met, self._process = True, psutil.Process(pid) if self._here else None

    def pids(self) -> tuple[int, int]:
        """Of the actor and of the Child."""
        return answer_of(self._actor.pids.remote(), PATIENCE_S)

    @property
    def pid(self) -> int:
        return self.pids()[1]

    def kill(self) -> int:
        code = -int(signal.SIGKILL)
        if ray.is_initialized():  # else all of it is gone; to ask would start another one
            with contextlib.suppress(Lost):
                code = answer_of(self._actor.kill.remote(), PATIENCE_S)
            ray.kill(self._actor)
        if self._process is not None:
            _, hanging = psutil.wait_procs([self._process], timeout=GRACE_S)
            for process in hanging:  # one that hangs does not hear of Ray
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return code


def answer_of(call: Any, timeout_s: float) -> Any:
    """What an actor answers. Raises Lost if it, or the vLLM that it has started, is."""
    try:
        return ray.get(call, timeout=timeout_s)
    except GetTimeoutError:
        raise Lost(f"its actor has said nothing for {timeout_s:.0f} s") from None
    except (RayActorError, ActorUnschedulableError) as error:
        raise Lost(f"its actor has died: {error}") from None
    except ObjectLostError as error:
        raise Lost(f"its node has died with the answer: {error}") from None
    except RayTaskError as error:
        if isinstance(error.cause, Lost):
            raise Lost(str(error.cause)) from None
        raise


def _connect(address: str) -> None:
    """To the Ray of this node's job, which is being started."""
    deadline = time.monotonic() + MEET_S
    while not ray.is_initialized():
        try:
            _init(guarded(address), address, namespace=PLACES)
        except (ConnectionError, RuntimeError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Ray does not answer at {address}: {error}") from error
            time.sleep(LOOK_S)


def _init(environment: Mapping[str, str], address: str, **settings: Any) -> None:
    """Start Ray or go to it, and leave this process as it was: its signals and its environment are its own."""
    stops = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_A_CHILD)  # as of a Child: it outlives a signal to stop
    try:
        with environment_with(environment):
            ray.init(address, log_to_driver=False, configure_logging=False, **settings)
    finally:
        signal.signal(signal.SIGTERM, stops)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
