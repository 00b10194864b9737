"""The Ray engine: vLLMs on GPUs of their own, on any node of the job; each lives in an actor of Ray.

All ranks use one Ray (rlvr/rollout/ray_node.py starts it) and have a part of its workers each. A worker is a VllmEngine
whose process is reached through an actor: what is lost, vLLM, actor or node, is replaced and asked again with the same
seeds; while it has no place, the others answer in its stead. Weights are broadcast to workers on GPUs or on other nodes
(rlvr/rollout/ray_broadcast.py). On a rank's own node others read them from memory that ranks have written; another node
is sent one copy where that is not possible.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.records import Completion, Judge, Progress, Request, Sampling, Supply
from rlvr.rollout.broadcast import LOOPBACK
from rlvr.rollout.child import Lost, Process, environment_with
from rlvr.rollout.conversation import Conversation
from rlvr.rollout.node import on_node, several
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.ray_broadcast import Broadcast, takes_part
from rlvr.rollout.ray_node import ADDRESS, MEET_S, NoPlace, guarded
from rlvr.rollout.vllm import SERVER, Asked, VllmEngine, tolerance

if TYPE_CHECKING:
    from rlvr.rollout.ray_cluster import Cluster

log = logging.getLogger(__name__)
T = TypeVar("T")
LOOK_S = 1.0


class RayEngine:
    """Samples with `workers` vLLMs, as VllmEngine does with one per rank: sample by sample the same."""

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
        """workers: of all ranks together, each with `tensor_parallel` GPUs of one node. As many for every rank, or one
        for the first of every few ranks. Else as of VllmEngine.
        """
        self._workers, self._cluster, self._broadcast = list[RemoteVllm](), None, None
        self._in_memory, self._tensors, self.version = NodeWeights(), list[Any](), 0
        self._threads = ThreadPoolExecutor(max(1, workers))
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if several() else (0, 1)
        if workers < 1 or (workers % ranks and ranks % workers):
            raise ValueError(f"rollout.engine.workers={workers}: not a multiple or a divisor of the {ranks} ranks")
        self._cluster = cluster = open_cluster(workers, tensor_parallel, rank, device)
        nodes, ranks_of_node = cluster.nodes(), on_node()[1]
        self.training_nodes = ranks // ranks_of_node
        self._afar = places_afar(nodes, ranks, ranks_of_node)
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
        to = [worker for worker in self._workers if takes_part(device, afar=worker.index in self._afar)]
        self._broadcast = Broadcast(to, processes=tensor_parallel, device=device, dtype=self.dtype)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As of VllmEngine: they lie in memory once on every node that has ranks, and its workers read them there.
        Workers on GPUs or on other nodes receive them as they are gathered, but the first: those are not waited for.
        """
        assert self._cluster is not None
        assert self._broadcast is not None
        for worker in self._workers:
            worker.synced = False
        with contextlib.ExitStack() as until_written:
            for worker in self._workers:
                until_written.enter_context(worker.starting)
            sent = self.version > 0 and self._broadcast.begin(self._tensors, self.version + 1)
            for worker in self._workers:
                worker.forget_weights()
            try:
                written = self._in_memory.write(self._broadcast.through(weights) if sent else weights, self.dtype)
            except BaseException:
                if sent:
                    self._broadcast.abandon()
                raise
            if not sent and several():
                if dist.get_rank() == 0:
                    self._cluster.send_weights(written, self.version + 1, self._afar)
                dist.barrier()  # the others need not send them again
            self._tensors, self.version = written["tensors"], self.version + 1
            for worker in self._workers:
                worker.announce_weights(written)
            if sent:
                self._broadcast.finish()
        self._each(lambda worker: worker.take_weights(), self._workers)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        answers = Answers()
        self.generate_until(requests, sampling, answers)
        return [answers.groups[row] for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """As StoppingEngine says: each worker stops by itself.

        Requests of a worker that has lost its place are shared by the others: a sample's noise is its own.
        """
        unanswered = set(range(len(requests)))

        def work(worker: RemoteVllm, rows: Sequence[int]) -> None:
            asked = [requests[row] for row in rows]
            worker.answer_until(asked, sampling, OfWorker(progress, rows, unanswered))

        while unanswered and not progress.enough:
            rows, workers = sorted(unanswered), self._placed()
            self._each(work, workers, [rows[index :: len(workers)] for index in range(len(workers))])

    def _placed(self) -> list[RemoteVllm]:
        """The workers that have a place now; if none has, one is waited for."""
        assert self._cluster is not None
        deadline = time.monotonic() + MEET_S
        while not (placed := [worker for worker in self._workers if worker.has_place()]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes of all {self.workers} workers of this rank are lost")
            time.sleep(LOOK_S)
        return placed

    def generate_stream(self, supply: Supply) -> None:
        """As StreamingEngine says: each worker asks for more when it has room."""
        if not self._workers:
            return  # the workers of other ranks ask for all
        shared = Shared(supply)

        def work(worker: RemoteVllm) -> None:
            try:
                while not shared.enough:
                    self._placed()  # fails if none has a place
                    if worker.has_place():
                        worker.stream(shared)
                    else:
                        time.sleep(LOOK_S)
            except BaseException:
                shared.failed = True
                raise

        with ThreadPoolExecutor(self.workers, "stream") as threads:
            pending = [threads.submit(work, worker) for worker in self._workers]
        for each in pending:
            each.result()

    def judges(self, task: Mapping[str, Any]) -> list[Judge]:
        """As SpreadEngine says. As many verifying processes there as the ranks of a node have together."""
        assert self._cluster is not None
        more = {**task, "workers": task["workers"] * on_node()[1]} if "workers" in task else task
        return self._cluster.judges(more, first=self.training_nodes)

    def sleep(self) -> None:
        """Nothing: the trainer does not need these GPUs."""

    def _each(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """What every worker gives, all at the same time. The first error is raised when all have ended."""
        pending = [self._threads.submit(work, *each) for each in zip(*arguments, strict=True)]
        wait(pending)
        return [future.result() for future in pending]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        if self._broadcast is not None:
            self._broadcast.close()
        self._in_memory.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._threads.shutdown()

    @property
    def pids(self) -> list[tuple[int, int]]:
        """Of each worker's actor, and of its vLLM."""
        return [worker.remote.pids() for worker in self._workers]


class Answers:
    """A progress that has never enough."""

    enough = False

    def __init__(self) -> None:
        self.groups: dict[int, tuple[Completion, ...]] = {}

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.groups[row] = samples


@dataclass(frozen=True)
class OfWorker:
    """The progress of a worker that was asked some rows of all."""

    all: Progress
    rows: Sequence[int]
    unanswered: set[int]

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.all.take(self.rows[row], samples)
        self.unanswered.discard(self.rows[row])

    @property
    def enough(self) -> bool:
        return self.all.enough


class Shared:
    """A supply that several workers share. Requests that one could not answer go to the next free worker."""

    def __init__(self, supply: Supply) -> None:
        self.failed = False  # one of the workers, which ends the others
        self._supply, self._lock = supply, threading.Lock()
        self._returned: list[tuple[int, Request, Sampling]] = []

    def begin(self, most: int, version: int) -> Sequence[tuple[int, Request, Sampling]]:
        with self._lock:
            returned, self._returned = self._returned, []
        return returned or self._supply.begin(most, version)

    def give_back(self, asked: Iterable[tuple[int, Request, Sampling]]) -> None:
        with self._lock:
            self._returned += asked

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        self._supply.deliver(row, samples, version)

    def wait(self) -> None:
        self._supply.wait()

    @property
    def enough(self) -> bool:
        return self.failed or self._supply.enough


class RemoteVllm(VllmEngine):
    """A vLLM that lives in an actor."""

    on_gpus_of_ranks = False

    def __init__(self, cluster: Cluster, index: int, model: Path, **knobs: Any) -> None:
        """index: of its place."""
        self._cluster, self.index = cluster, index
        super().__init__(model, **knobs)

    def has_place(self) -> bool:
        return self._cluster.has(self.index)

    def answer_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """As `generate_until`, as far as it has a place."""
        if requests:
            self._in_place(lambda: self.generate_until(requests, sampling, progress))

    def take_weights(self) -> None:
        """As of VllmEngine. Without a place it is given them when it has one."""
        self._in_place(super().take_weights)
        self.synced = True

    def stream(self, shared: Shared) -> None:
        """Sample what all workers share, until there is enough or the place is lost."""
        asked: Asked = {}
        try:
            self._in_place(lambda: self._stream(shared, asked))
        finally:
            shared.give_back((row, *each) for row, each in asked.items())

    # --- weights that are broadcast; whoever calls these has `starting`, or is called by who has ---

    @property
    def conversation(self) -> Conversation | None:
        """With its process, if that has started."""
        return self._conversation

    def answers(self) -> bool:
        """Whether its process is there, with the newest weights."""
        if self._conversation is None or self._sent_version != self.version:
            return False
        try:
            with self._conversation.topic() as topic:
                self._stop(topic)
        except Lost:
            return False
        return True

    def join(self, header: dict[str, Any]) -> str:
        """A group of those that weights are broadcast to. Returns why it cannot."""
        assert self._conversation is not None
        try:
            return str(self._answer_to(self._conversation, {"do": "join", **header})["why"])
        except Lost as lost:
            return str(lost)

    def take_broadcast(self, tensors: Sequence[Any], version: int) -> bool:
        """Wait until it has them all; False if it is lost."""
        assert self._conversation is not None
        self._conversation.version = version  # of what it answers from the moment that it has them
        try:
            with self._conversation.topic() as topic:
                topic.send({"do": "take", "to_version": version, "tensors": tensors}, {}, self.timeout_s)
                self._conversation.begins_with = version
                topic.receive(self.timeout_s)
        except Lost as lost:
            log.warning("a worker was lost amid new weights: %s", lost)
            return False
        self._sent_version = version
        return True

    def end(self) -> None:
        """Its process. The next one is started when it is wanted."""
        if self._child is not None:
            self._end_process()

    def _in_place(self, work: Callable[[], T]) -> T | None:
        """What it gives, or None if there is no place to do it in."""
        try:
            return work()
        except NoPlace as lost:
            log.warning("%s: the other workers answer in its stead", lost)
            with self.starting:
                self._child = self._conversation = None
            return None

    def _process(self) -> Process:
        self.remote = self._cluster.start(self.index, self._python, SERVER, self._options, self._environment)
        return self.remote

    def _weights_for(self, child: Process) -> dict[str, Any]:
        return self._cluster.weights_for(self.index, self._weights, self.version)


def open_cluster(workers: int, gpus_each: int, rank: int, device: torch.device) -> Cluster:
    """Of all ranks. The first opens it: the others look for what that has put there."""
    with environment_with(guarded(os.environ.get(ADDRESS, LOOPBACK))):  # Ray reads it as it is imported
        from rlvr.rollout.ray_cluster import Cluster
    first = Cluster(workers, gpus_each, 0, device) if rank == 0 else None
    if several():
        dist.barrier()
    return first or Cluster(workers, gpus_each, rank, device)


def own_places(nodes: Sequence[int], rank: int, ranks: int, ranks_of_node: int) -> list[int]:
    """The places of a rank's workers: those of its own node as far as there are some. As many for each rank or, where
    workers are fewer than ranks, one for the first of every few.

    nodes: number of the node of each place; ranks are numbered node by node.
    """
    each, apart = max(1, len(nodes) // ranks), max(1, ranks // len(nodes))
    left = list(range(len(nodes)))
    taken: dict[int, list[int]] = {}
    for number in range(0, ranks, apart):
        taken[number] = [place for place in left if nodes[place] == number // ranks_of_node][:each]
        left = [place for place in left if place not in taken[number]]
    for own in taken.values():
        own += [left.pop(0) for _ in range(each - len(own))]
    return taken.get(rank, [])


def places_afar(nodes: Sequence[int], ranks: int, ranks_of_node: int) -> list[int]:
    """The places of workers that are not on the node of their rank."""
    owned = [(place, rank) for rank in range(ranks) for place in own_places(nodes, rank, ranks, ranks_of_node)]
    return sorted(place for place, rank in owned if nodes[place] != rank // ranks_of_node)
