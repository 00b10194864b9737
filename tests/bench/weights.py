"""Transfer of weights to another node: broadcast by gloo, beside pieces through Ray. Both over loopback."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from rlvr.rollout.broadcast import LOOPBACK, Group, meet, open_store
from rlvr.rollout.child import environment_with
from rlvr.rollout.ray_node import STORE_BYTES, TOKEN, new_token, ray_environment
from tests.bench.row import Row, in_turn, row, timed

TENSOR_BYTES = 2**25
TIMEOUT_S = 60.0
REPEATS = 3


def rows(*, quick: bool) -> Iterator[Row]:
    """GB/s of each: the median over a few transfers after a warm-up."""
    tensors = 2 if quick else 32
    with _broadcast(tensors) as broadcast, _through_ray(tensors) as through_ray:
        seconds = in_turn({"ours": timed(broadcast), "ray": timed(through_ray)}, 1 if quick else REPEATS)
    ours, peer = (tensors * TENSOR_BYTES / 1e9 / seconds[side] for side in ("ours", "ray"))
    yield row("weights to another node", ours, "GB/s", "in pieces through Ray", peer, target=1.0)


@contextlib.contextmanager
def _broadcast(tensors: int) -> Iterator[Callable[[], None]]:
    """Context with a function that sends tensors to a process and waits until it has received all."""
    store, address = open_store(LOOPBACK, TIMEOUT_S)
    context = multiprocessing.get_context("spawn")
    connection, of_receiver = context.Pipe()
    receiver = context.Process(target=_receive, args=(address, tensors, of_receiver), daemon=True)
    receiver.start()
    group = Group(store, 0, 2, on=torch.device("cpu"), timeout_s=TIMEOUT_S)
    sent = torch.ones(TENSOR_BYTES, dtype=torch.uint8)

    def send() -> None:
        connection.send("go")
        for _ in range(tensors):
            group.broadcast(sent)
        assert connection.recv() == tensors

    try:
        yield send
    finally:
        group.close()
        receiver.kill()
        receiver.join()


def _receive(address: str, tensors: int, connection: Connection) -> None:
    store, ip = meet(address, TIMEOUT_S)
    group = Group(store, 1, 2, on=torch.device("cpu"), ip=ip, timeout_s=TIMEOUT_S)
    while connection.recv() == "go":
        num_complete = 0
        for _ in range(tensors):
            received = torch.empty(TENSOR_BYTES, dtype=torch.uint8)  # as vLLM's process does
            group.broadcast(received)
            num_complete += int(received[-1])
        connection.send(num_complete)


@contextlib.contextmanager
def _through_ray(tensors: int) -> Iterator[Callable[[], None]]:
    """Context with a function that sends a file to an actor on a second Ray node, on this machine too."""
    with contextlib.ExitStack() as until_sent:
        until_sent.enter_context(
            environment_with({**ray_environment(LOOPBACK), TOKEN: new_token()})
        )  # Ray reads it at once
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
        this_node = ray.get_runtime_context().get_node_id()
        (other_node,) = {node["NodeID"] for node in ray.nodes()} - {this_node}
        on_other_node = NodeAffinitySchedulingStrategy(other_node, soft=False)
        holder = ray.remote(WeightsActor).options(scheduling_strategy=on_other_node, num_cpus=0).remote()
        file = Path(until_sent.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm")).name)
        file.write_bytes(bytes(tensors * TENSOR_BYTES))

        def send() -> None:
            assert _send(holder, file) == tensors * TENSOR_BYTES

        yield send
