"""The Ray engine: vLLMs on GPUs of their own, on any node of the job; each runs in an actor of Ray.

All ranks use one Ray (started by rlvr/rollout/ray_node.py) and have a part of its workers each. A worker is a vLLM
whose process is reached through an actor. Weights are broadcast to workers on GPUs or on other nodes
(rlvr/rollout/ray_broadcast.py). Other workers on a rank's own node read them from memory that the ranks have written.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Progress, Request, Sampling, Supply
from rlvr.rollout.broadcast import LOOPBACK
from rlvr.rollout.child import environment_with
from rlvr.rollout.node import has_several_ranks, rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.ray_broadcast import Broadcast
from rlvr.rollout.ray_node import ADDRESS, ray_environment
from rlvr.rollout.sampler import CollectedSamples
from rlvr.rollout.vllm import tolerance
from rlvr.rollout.vllm_client import VllmClient, VllmKnobs
from rlvr.rollout.vllm_requests import AllRequests

if TYPE_CHECKING:
    from rlvr.rollout.ray_cluster import Cluster


@dataclass(kw_only=True, eq=False)
class RayEngine(VllmKnobs):
    """Samples with vLLMs of its own. Each sample is the same as that of a VllmEngine with one vLLM per rank."""

    # of all ranks together, each with `tensor_parallel` GPUs of one node: as many for each rank, or one for the first
    # rank of every few
    workers: int

    def __post_init__(self) -> None:
        self._clients, self._cluster, self._broadcast = list[VllmClient](), None, None
        self._node_weights, self.version = NodeWeights(), 0  # version: number of syncs so far
        self._threads = ThreadPoolExecutor(2 * max(1, self.workers))  # a worker takes weights while it samples
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if has_several_ranks() else (0, 1)
        if self.workers < 1 or (self.workers % ranks and ranks % self.workers):
            raise ValueError(f"rollout.engine.workers={self.workers}: not a multiple or a divisor of the {ranks} ranks")
        self._cluster = cluster = open_cluster(self.workers, self.tensor_parallel, rank, self.device)
        nodes, ranks_of_node = cluster.nodes(), rank_on_node()[1]
        receivers = list[VllmClient]()
        self._readers = list[VllmClient]()  # of the weights in this node's memory
        for place in own_places(nodes, rank, ranks, ranks_of_node):
            name = f"worker {place} of Ray on node {nodes[place]}: vLLM"
            client = VllmClient(self, functools.partial(cluster.start, place), name=name, sleeps=False)
            self._clients.append(client)
            reads = self.device.type != "cuda" and nodes[place] == rank // ranks_of_node
            (self._readers if reads else receivers).append(client)
        self.copies, self.tolerance = len(self._clients), tolerance(self.dtype, self.canary)
        self._broadcast = Broadcast(receivers, processes=self.tensor_parallel, device=self.device)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As VllmEngine.sync. The weights are written once to the memory of every node that has ranks, where its
        workers on a CPU read them. Workers on GPUs or on other nodes receive them from the first rank.
        """
        assert self._broadcast is not None
        written = self._node_weights.write(weights, parse_dtype(self.dtype))
        self.version += 1
        header = {"do": "sync", **written}
        reading = [self._threads.submit(client.take_weights, header, self.version) for client in self._readers]
        self._broadcast.send(written, self.version)
        _await_all(reading)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        collected = CollectedSamples()
        self.generate_until(requests, sampling, collected)
        return [collected.samples[row] for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine; each worker answers an equal part of the requests, and stops by itself."""
        parts = [dict(list(enumerate(requests))[index :: self.copies]) for index in range(self.copies)]
        supplies = [AllRequests(part, sampling, progress) for part in parts]
        pairs = zip(self._clients, supplies, strict=True)
        _await_all([self._threads.submit(client.generate_stream, part) for client, part in pairs if part.requests])

    def generate_stream(self, supply: Supply) -> None:
        """See StreamingEngine; each worker requests more when it has room. On other ranks than those with workers there
        is nothing to do.
        """
        _await_all([self._threads.submit(client.generate_stream, supply, self.copies) for client in self._clients])

    def sleep(self) -> None:
        """Nothing to do: the trainer does not need the workers' GPUs."""

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.end()
        if self._broadcast is not None:
            self._broadcast.close()
        self._node_weights.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._threads.shutdown()


def _await_all(calls: Sequence[Future[None]]) -> None:
    """Wait for all calls, or until one fails. Raises its error."""
    for call in as_completed(calls):
        call.result()


def open_cluster(workers: int, gpus_each: int, rank: int, device: torch.device) -> Cluster:
    """The cluster of all ranks. The first rank creates its places, which the others look up."""
    with environment_with(ray_environment(os.environ.get(ADDRESS, LOOPBACK))):  # Ray reads the environment on import
        from rlvr.rollout.ray_cluster import Cluster
    first = Cluster(workers, gpus_each, 0, device) if rank == 0 else None
    if has_several_ranks():
        dist.barrier()
    return first or Cluster(workers, gpus_each, rank, device)


def own_places(nodes: Sequence[int], rank: int, ranks: int, ranks_of_node: int) -> list[int]:
    """The places of a rank's workers, on its own node as far as that has some: equally many for each rank, or one for
    the first rank of every few. nodes: by place, the number of its node; ranks are numbered node by node.
    """
    places_per_rank, ranks_per_place = max(1, len(nodes) // ranks), max(1, ranks // len(nodes))
    free = list(range(len(nodes)))
    places_of: dict[int, list[int]] = {}  # by rank
    for number in range(0, ranks, ranks_per_place):
        on_own_node = [place for place in free if nodes[place] == number // ranks_of_node]
        places_of[number] = on_own_node[:places_per_rank]
        free = [place for place in free if place not in places_of[number]]
    for places in places_of.values():
        places += [free.pop(0) for _ in range(places_per_rank - len(places))]
    return places_of.get(rank, [])
