"""The Ray engine: vLLMs on GPUs of their own, on any node of the job; each runs in an actor of Ray.

All ranks use one Ray (started by rlvr/rollout/ray_node.py) and have a part of its workers each. A worker is a
VllmEngine whose process is reached through an actor. A vLLM or actor that is lost is replaced, and its requests are
sent again with the same seeds; the loss of a worker's node ends the attempt with EngineLost. Weights are broadcast to
workers on GPUs or on other nodes (rlvr/rollout/ray_broadcast.py). Other workers on a rank's own node read them from
memory that the ranks have written; where a broadcast is not possible, another node is sent one copy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Progress, Request, Sampling, Supply
from rlvr.rollout.broadcast import LOOPBACK
from rlvr.rollout.child import Process, ProcessLost, environment_with
from rlvr.rollout.connection import Connection
from rlvr.rollout.node import has_several_ranks, rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.ray_broadcast import Broadcast, takes_part
from rlvr.rollout.ray_node import ADDRESS, ray_environment
from rlvr.rollout.sampler import CollectedSamples
from rlvr.rollout.vllm import SERVER, VllmEngine, tolerance

if TYPE_CHECKING:
    from rlvr.rollout.ray_cluster import Cluster

log = logging.getLogger(__name__)


class RayEngine:
    """Samples with `workers` vLLMs. Each sample is the same as that of a VllmEngine with one vLLM per rank."""

    def __init__(
        self,
        model: Path,
        *,
        workers: int,
        device: torch.device,
        eos_token_ids: Sequence[int],
        dtype: Literal["float32", "bfloat16", "float16"],
        python: str | None,
        eager: bool,
        max_batch_sequences: PositiveInt,
        max_cache_gb: PositiveFloat | None,
        canary: PositiveFloat | None,
        timeout_s: PositiveFloat,
        tensor_parallel: PositiveInt = 1,
        pad_token_id: int = 0,
    ) -> None:
        """workers: number of vLLMs of all ranks together, each with `tensor_parallel` GPUs of one node; the same number
        for every rank, or one for the first rank of every few. Other parameters: see VllmEngine.
        """
        self._workers, self._cluster, self._broadcast = list[RemoteVllm](), None, None
        self._node_weights, self._descriptions, self.version = NodeWeights(), list[Any](), 0
        self._threads = ThreadPoolExecutor(max(1, workers))
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if has_several_ranks() else (0, 1)
        if workers < 1 or (workers % ranks and ranks % workers):
            raise ValueError(f"rollout.engine.workers={workers}: not a multiple or a divisor of the {ranks} ranks")
        self._cluster = cluster = open_cluster(workers, tensor_parallel, rank, device)
        nodes, ranks_of_node = cluster.nodes(), rank_on_node()[1]
        self._remote_places = remote_places(nodes, ranks, ranks_of_node)
        for index in own_places(nodes, rank, ranks, ranks_of_node):
            worker = RemoteVllm(
                cluster,
                index,
                model,
                device=device,
                eos_token_ids=eos_token_ids,
                dtype=dtype,
                python=python,
                eager=eager,
                max_batch_sequences=max_batch_sequences,
                max_cache_gb=max_cache_gb,
                canary=canary,
                timeout_s=timeout_s,
                tensor_parallel=tensor_parallel,
                pad_token_id=pad_token_id,
            )
            self._workers.append(worker)
        self.dtype, self.canary, self.workers = parse_dtype(dtype), tolerance(dtype, canary), len(self._workers)
        receivers = [w for w in self._workers if takes_part(device, is_remote=w.index in self._remote_places)]
        self._broadcast = Broadcast(receivers, processes=tensor_parallel, device=device, dtype=self.dtype)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As VllmEngine.sync. The weights are written once to the memory of every node that has ranks, where its
        workers read them. Workers on GPUs or on other nodes receive them as they are gathered, except the first
        weights: workers may still be starting then, and are not waited for.
        """
        assert self._cluster is not None
        assert self._broadcast is not None
        for worker in self._workers:
            worker.synced = False
        with contextlib.ExitStack() as until_written:
            for worker in self._workers:
                until_written.enter_context(worker.start_lock)
            is_broadcast = self.version > 0 and self._broadcast.begin(self._descriptions, self.version + 1)
            for worker in self._workers:
                worker.forget_weights()
            try:
                passing = self._broadcast.through(weights) if is_broadcast else weights
                written = self._node_weights.write(passing, self.dtype)
            except BaseException:
                if is_broadcast:
                    self._broadcast.abandon()
                raise
            if not is_broadcast and has_several_ranks():
                if dist.get_rank() == 0:
                    self._cluster.send_weights(written, self.version + 1, self._remote_places)
                dist.barrier()  # the other ranks then find the copies there
            self._descriptions, self.version = written["tensors"], self.version + 1
            for worker in self._workers:
                worker.announce_weights(written)
            if is_broadcast:
                self._broadcast.finish()
        self._on_workers(lambda worker: worker.take_weights(), self._workers)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        collected = CollectedSamples()
        self.generate_until(requests, sampling, collected)
        return [collected.samples[row] for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine; each worker answers an equal part of the requests, and stops by itself."""
        parts = [range(index, len(requests), self.workers) for index in range(self.workers)]

        def work(worker: RemoteVllm, rows: Sequence[int]) -> None:
            if rows:
                worker.generate_until([requests[row] for row in rows], sampling, ProgressOfPart(progress, rows))

        self._on_workers(work, self._workers, parts)

    def generate_stream(self, supply: Supply) -> None:
        """See StreamingEngine; each worker requests more when it has room."""
        if not self._workers:
            return  # the workers of other ranks sample for all
        shared = SharedSupply(supply, self.workers)

        def work(worker: RemoteVllm) -> None:
            try:
                worker.generate_stream(shared)
            except BaseException:
                shared.failed = True
                raise

        with ThreadPoolExecutor(self.workers, "stream") as threads:
            pending = [threads.submit(work, worker) for worker in self._workers]
        for future in pending:
            future.result()

    def sleep(self) -> None:
        """Nothing to do: the trainer does not need the workers' GPUs."""

    def _on_workers(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call `work` for all workers at the same time. Returns the results; the first error is raised once all calls
        have ended.
        """
        pending = [self._threads.submit(work, *parts) for parts in zip(*arguments, strict=True)]
        wait(pending)
        return [future.result() for future in pending]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        if self._broadcast is not None:
            self._broadcast.close()
        self._node_weights.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._threads.shutdown()

    @property
    def pids(self) -> list[tuple[int, int]]:
        """Process ids of each worker's actor and of its vLLM."""
        return [worker.remote.pids() for worker in self._workers]


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


class RemoteVllm(VllmEngine):
    """A vLLM that runs in an actor of Ray."""

    on_gpus_of_ranks = False

    def __init__(self, cluster: Cluster, index: int, model: Path, **knobs: Any) -> None:
        """index: number of the worker's place in the cluster."""
        self._cluster, self.index = cluster, index
        super().__init__(model, **knobs)

    # --- weights that are broadcast; the caller of these methods holds `start_lock`, or acts for a thread that does ---

    @property
    def connection(self) -> Connection | None:
        """The connection to the worker's process; None if it has not started."""
        return self._connection

    def answers(self) -> bool:
        """Whether the worker's process responds and has the newest weights."""
        if self._connection is None or self._sent_version != self.version:
            return False
        try:
            with self._connection.topic() as topic:
                self._stop(topic)
        except ProcessLost:
            return False
        return True

    def join(self, header: dict[str, Any]) -> str:
        """Join a group to which weights are broadcast. Returns why joining failed; "" if it did not."""
        assert self._connection is not None
        try:
            return str(self._exchange(self._connection, {"do": "join", **header})["why"])
        except ProcessLost as lost:
            return str(lost)

    def take_broadcast(self, tensors: Sequence[Any], version: int) -> bool:
        """Wait until the worker has received all weights. Returns False if it is lost."""
        assert self._connection is not None
        self._connection.version = version  # the version of its answers once it has all weights
        try:
            with self._connection.topic() as topic:
                topic.send({"do": "take", "to_version": version, "tensors": tensors}, {}, self.timeout_s)
                self._connection.begins_with = version
                topic.receive(self.timeout_s)
        except ProcessLost as lost:
            log.warning("a worker was lost amid new weights: %s", lost)
            return False
        self._sent_version = version
        return True

    def end(self) -> None:
        """End the worker's process. A new one is started when it is needed."""
        if self._child is not None:
            self._end_process()

    def start_process(self) -> Process:
        self.remote = self._cluster.start(self.index, self._python, SERVER, self._options, self._environment)
        return self.remote

    def location_of_weights(self) -> dict[str, Any]:
        return self._cluster.weights_for(self.index, self._weights, self.version)


def open_cluster(workers: int, gpus_each: int, rank: int, device: torch.device) -> Cluster:
    """The cluster of all ranks. The first rank creates its places, which the others look up."""
    with environment_with(ray_environment(os.environ.get(ADDRESS, LOOPBACK))):  # Ray reads the environment on import
        from rlvr.rollout.ray_cluster import Cluster
    first = Cluster(workers, gpus_each, 0, device) if rank == 0 else None
    if has_several_ranks():
        dist.barrier()
    return first or Cluster(workers, gpus_each, rank, device)


def own_places(nodes: Sequence[int], rank: int, ranks: int, ranks_of_node: int) -> list[int]:
    """The places of a rank's workers, on its own node as far as that has some. Each rank has equally many; if there are
    fewer workers than ranks, the first rank of every few has one.

    nodes: by place, the number of its node; ranks are numbered node by node.
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
