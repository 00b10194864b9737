"""The Ray engine: vLLMs on GPUs of their own, on any node of the job; each runs in an actor of Ray.

All ranks use one Ray (started by rlvr/rollout/ray_node.py) and have a part of its workers each. A worker is a vLLM
whose process is reached through an actor. A vLLM or actor that is lost is replaced; the loss of a worker's node ends
the attempt with EngineLost. Weights are broadcast to workers on GPUs or on other nodes
(rlvr/rollout/ray_broadcast.py). Other workers on a rank's own node read them from memory that the ranks have written;
where a broadcast is not possible, another node is sent one copy.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Progress, Request, Sampling, Supply
from rlvr.rollout.broadcast import LOOPBACK
from rlvr.rollout.child import environment_with
from rlvr.rollout.node import has_several_ranks, rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.ray_broadcast import Broadcast, takes_part
from rlvr.rollout.ray_node import ADDRESS, ray_environment
from rlvr.rollout.sampler import CollectedSamples
from rlvr.rollout.vllm import tolerance
from rlvr.rollout.vllm_client import Host, VllmClient, VllmKnobs

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
        self._node_weights, self._descriptions, self.version = NodeWeights(), list[Any](), 0
        self._threads = ThreadPoolExecutor(max(1, self.workers))
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if has_several_ranks() else (0, 1)
        if self.workers < 1 or (self.workers % ranks and ranks % self.workers):
            raise ValueError(f"rollout.engine.workers={self.workers}: not a multiple or a divisor of the {ranks} ranks")
        self._cluster = cluster = open_cluster(self.workers, self.tensor_parallel, rank, self.device)
        nodes, ranks_of_node = cluster.nodes(), rank_on_node()[1]
        self._remote_places = remote_places(nodes, ranks, ranks_of_node)
        receivers = list[VllmClient]()
        for place in own_places(nodes, rank, ranks, ranks_of_node):
            host = Host(functools.partial(cluster.start, place), functools.partial(cluster.weights_for, place))
            client = VllmClient(self, host, sleeps=False)
            client.start()
            self._clients.append(client)
            if takes_part(self.device, is_remote=place in self._remote_places):
                receivers.append(client)
        self.copies, self.tolerance = len(self._clients), tolerance(self.dtype, self.canary)
        dtype = parse_dtype(self.dtype)
        self._broadcast = Broadcast(receivers, processes=self.tensor_parallel, device=self.device, dtype=dtype)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As VllmEngine.sync. The weights are written once to the memory of every node that has ranks, where its
        workers read them. Workers on GPUs or on other nodes receive them as they are gathered, except the first
        weights: workers may still be starting then, and are not waited for.
        """
        assert self._cluster is not None
        assert self._broadcast is not None
        for client in self._clients:
            client.synced = False
        with contextlib.ExitStack() as until_written:
            for client in self._clients:
                until_written.enter_context(client.start_lock)
            is_broadcast = self.version > 0 and self._broadcast.begin(self._descriptions, self.version + 1)
            for client in self._clients:
                client.forget_weights()
            try:
                passing = self._broadcast.through(weights) if is_broadcast else weights
                written = self._node_weights.write(passing, parse_dtype(self.dtype))
            except BaseException:
                if is_broadcast:
                    self._broadcast.abandon()
                raise
            if not is_broadcast and has_several_ranks():
                if dist.get_rank() == 0:
                    self._cluster.send_weights(written, self.version + 1, self._remote_places)
                dist.barrier()  # the other ranks then find the copies there
            self._descriptions, self.version = written["tensors"], self.version + 1
            for client in self._clients:
                client.announce_weights(written)
            if is_broadcast:
                self._broadcast.finish()
        self._on_clients(lambda client: client.take_weights(), self._clients)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        collected = CollectedSamples()
        self.generate_until(requests, sampling, collected)
        return [collected.samples[row] for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine; each worker answers an equal part of the requests, and stops by itself."""
        parts = [range(index, len(requests), self.copies) for index in range(self.copies)]

        def work(client: VllmClient, rows: Sequence[int]) -> None:
            if rows:
                client.generate_until([requests[row] for row in rows], sampling, ProgressOfPart(progress, rows))

        self._on_clients(work, self._clients, parts)

    def generate_stream(self, supply: Supply) -> None:
        """See StreamingEngine; each worker requests more when it has room."""
        if not self._clients:
            return  # the workers of other ranks sample for all
        shared = SharedSupply(supply, self.copies)

        def work(client: VllmClient) -> None:
            try:
                client.generate_stream(shared)
            except BaseException:
                shared.failed = True
                raise

        with ThreadPoolExecutor(self.copies, "stream") as threads:
            pending = [threads.submit(work, client) for client in self._clients]
        for future in pending:
            future.result()

    def sleep(self) -> None:
        """Nothing to do: the trainer does not need the workers' GPUs."""

    def _on_clients(self, work: Callable[..., None], *arguments: Iterable[Any]) -> None:
        """Call `work` for all workers at the same time. The first error is raised once all calls have ended."""
        pending = [self._threads.submit(work, *parts) for parts in zip(*arguments, strict=True)]
        wait(pending)
        for future in pending:
            future.result()

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


@dataclass(frozen=True)
class ProgressOfPart:
    """The `Progress` of a worker that samples some of all requests. rows: of its requests among all."""

    all: Progress
    rows: Sequence[int]

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.all.take(self.rows[row], samples)

    @property
    def enough(self) -> bool:
        return self.all.enough


class SharedSupply:
    """A `Supply` that several workers share."""

    def __init__(self, supply: Supply, workers: int) -> None:
        self.failed = False  # whether a worker has failed, which ends the others
        self._supply, self._workers = supply, workers

    @property
    def most_running(self) -> int:
        """An equal part for each worker: the first to ask would otherwise get all that may begin."""
        return -(-self._supply.most_running // self._workers)

    def begin(self, most: int, version: int) -> Sequence[tuple[int, Request, Sampling]]:
        return self._supply.begin(most, version)

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        self._supply.deliver(row, samples, version)

    def wait(self) -> None:
        self._supply.wait()

    @property
    def enough(self) -> bool:
        return self.failed or self._supply.enough


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


def remote_places(nodes: Sequence[int], ranks: int, ranks_of_node: int) -> list[int]:
    """The places of workers that are not on the node of their rank."""
    owned = [(place, rank) for rank in range(ranks) for place in own_places(nodes, rank, ranks, ranks_of_node)]
    return sorted(place for place, rank in owned if nodes[place] != rank // ranks_of_node)
