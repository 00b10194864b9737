"""The Ray engine: vLLMs on GPUs of their own, beside those of the ranks; each lives in an actor of Ray.

A rank has a Ray of its own and its share of the workers. Each of them is a VllmEngine whose process is reached through
an actor: what is lost, vLLM or actor, is replaced and asked again with the same seeds. Weights do not pass through Ray:
all processes of the node read the same memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.records import Completion, Progress, Request, Sampling
from rlvr.rollout.child import Process, environment_with
from rlvr.rollout.node import on_node, several
from rlvr.rollout.ray_actor import GUARDED
from rlvr.rollout.vllm import SERVER, VllmEngine


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
        pad_token_id: int = 0,
    ) -> None:
        """workers: of all ranks together, a multiple of their number. Else as of VllmEngine."""
        self._workers, self._cluster = list[RemoteVllm](), None
        self._threads = ThreadPoolExecutor(max(1, workers))
        ranks = dist.get_world_size() if several() else 1
        if workers < 1 or workers % ranks:
            raise ValueError(f"rollout.engine.workers={workers} must be a multiple of the ranks of the run, {ranks}")
        with environment_with(GUARDED):  # Ray reads it as it is imported
            from rlvr.rollout.ray_cluster import Cluster
        self._cluster = cluster = Cluster(workers // ranks, *on_node(), device)
        for index in range(workers // ranks):
            worker = RemoteVllm(
                functools.partial(cluster.start, index),
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
                pad_token_id=pad_token_id,
            )
            self._workers.append(worker)
        self.canary, self.workers = self._workers[0].canary, len(self._workers)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As of VllmEngine: they lie in memory once, whatever the number of workers."""
        for worker in self._workers:
            worker.synced = False
        written = self._workers[0].write_weights(weights)
        self._each(lambda worker: worker.use_weights(written))

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        shares = [requests[index :: self.workers] for index in range(self.workers)]
        answered = self._each(lambda worker, share: worker.generate(share, sampling) if share else [], shares)
        return [answered[row % self.workers][row // self.workers] for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """As StoppingEngine says: each worker stops by itself."""
        shares = [requests[index :: self.workers] for index in range(self.workers)]

        def work(worker: RemoteVllm, index: int, share: Sequence[Request]) -> None:
            if share:
                worker.generate_until(share, sampling, OfWorker(progress, index, self.workers))

        self._each(work, range(self.workers), shares)

    def sleep(self) -> None:
        """Nothing: the trainer does not need these GPUs."""

    def _each(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """What every worker gives, all at the same time. The first error is raised when all have ended."""
        pending = [self._threads.submit(work, *each) for each in zip(self._workers, *arguments, strict=True)]
        wait(pending)
        return [future.result() for future in pending]

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._threads.shutdown()

    @property
    def pids(self) -> list[tuple[int, int]]:
        """Of each worker's actor, and of its vLLM."""
        return [worker.remote.pids() for worker in self._workers]


@dataclass(frozen=True)
class OfWorker:
    """The progress of a worker that has every `workers`-th request."""

    all: Progress
    index: int
    workers: int

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.all.take(self.index + row * self.workers, samples)

    @property
    def enough(self) -> bool:
        return self.all.enough


class RemoteVllm(VllmEngine):
    """A vLLM that lives in an actor."""

    def __init__(self, start: Callable[..., Any], model: Path, **knobs: Any) -> None:
        """start: gives a process in an actor, as the Child of these arguments would be here."""
        self._start = start
        super().__init__(model, **knobs)

    def _process(self) -> Process:
        self.remote = self._start(self._python, SERVER, self._options, self._environment)
        return self.remote
