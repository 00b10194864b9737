"""Weights on their way to another node: broadcast by gloo, beside pieces through Ray. Both over loopback."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rlvr.rollout.broadcast import LOOPBACK, Group, meet, open_store
from rlvr.rollout.child import environment_with
from rlvr.rollout.ray_node import STORE_BYTES, TOKEN, guarded, new_token

TENSOR_BYTES = 2**25
TIMEOUT_S = 60.0
REPEATS = 3


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """GB/s of each, the median over a few transfers after one that is not counted."""
    tensors = 2 if quick else 32
    with _broadcast(tensors) as broadcast, _through_ray(tensors) as through_ray:
        ours, theirs = list[float](), list[float]()
        for repeat in range(1 + (1 if quick else REPEATS)):
            for send, speeds in ((broadcast, ours), (through_ray, theirs)):
                began = time.perf_counter()
                send()
                if repeat:
                    speeds.append(tensors * TENSOR_BYTES / 1e9 / (time.perf_counter() - began))
    value, peer = statistics.median(ours), statistics.median(theirs)
    yield {
        "name": "weights to another node",
        "value": value,
        "unit": "GB/s",
        "peer": "in pieces through Ray",
        "peer_value": peer,
        "ratio": value / peer,
        "target": 1.0,
    }


@contextlib.contextmanager
def _broadcast(tensors: int) -> Iterator[Callable[[], None]]:
    """Sends to a process, and waits until that has all of them."""
    store, where = open_store(LOOPBACK, TIMEOUT_S)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(where, tensors, theirs), daemon=True)
    receiver.start()
    group = Group(store, 0, 2, on=torch.device("cpu"), timeout_s=TIMEOUT_S)
    sent = torch.ones(TENSOR_BYTES, dtype=torch.uint8)

    def send() -> None:
        ours.send("go")
        for _ in range(tensors):
            group.broadcast(sent)
        assert ours.recv() == tensors

    try:
        yield send
    finally:
        group.close()
        receiver.kill()
        receiver.join()


def _receive(where: str, tensors: int, said: Connection) -> None:
    store, ip = meet(where, TIMEOUT_S)
    group = Group(store, 1, 2, on=torch.device("cpu"), ip=ip, timeout_s=TIMEOUT_S)
    while said.recv() == "go":
        whole = 0
        for _ in range(tensors):
            received = torch.empty(TENSOR_BYTES, dtype=torch.uint8)  # as vLLM's process does
            group.broadcast(received)
            whole += int(received[-1])
        said.send(whole)


@contextlib.contextmanager
def _through_ray(tensors: int) -> Iterator[Callable[[], None]]:
    """Sends a file to an actor on a second node of Ray, which is of this machine too."""
    with contextlib.ExitStack() as until_sent:
        until_sent.enter_context(environment_with({**guarded(LOOPBACK), TOKEN: new_token()}))  # Ray reads it at once
        import ray
        from ray.cluster_utils import Cluster
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from rlvr.rollout.ray_actor import WeightsActor
        from rlvr.rollout.ray_cluster import _send

        cluster = Cluster()
        until_sent.callback(cluster.shutdown)
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
        until_sent.callback(ray.shutdown)
        here = ray.get_runtime_context().get_node_id()
        (there,) = {node["NodeID"] for node in ray.nodes()} - {here}
        where = NodeAffinitySchedulingStrategy(there, soft=False)
        holder = ray.remote(WeightsActor).options(scheduling_strategy=where, num_cpus=0).remote()
        file = Path(until_sent.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm")).name)
        file.write_bytes(bytes(tensors * TENSOR_BYTES))

        def send() -> None:
            assert _send(holder, file) == tensors * TENSOR_BYTES

        yield send
