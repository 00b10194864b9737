"""The Ray engine: vLLMs on GPUs of their own, beside those of the ranks; each lives in an actor of Ray.

A rank has a Ray of its own and its share of the workers. Each of them is a VllmEngine whose process is reached through
an actor: what is lost, vLLM or actor, is replaced and asked again with the same seeds. Weights do not pass through Ray:
all processes of the node read the same memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

# Both are read when Ray is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else it listens on every address of the machine
os.environ["RAY_AUTH_MODE"] = "token"  # loopback is everyone's on this machine, and Ray runs what it is sent

import psutil
import ray
import torch
import torch.distributed as dist
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from rlvr.records import Completion, Request, Sampling
from rlvr.rollout.child import NOT_FOR_THE_CHILD, Lost, Process
from rlvr.rollout.node import on_node, several
from rlvr.rollout.ray_actor import Actor
from rlvr.rollout.vllm import SERVER, VllmEngine
from rlvr.rollout.vllm_server import Arrays

PATIENCE_S = 120.0  # what an actor may take to start, and on top of what it waits for itself
GRACE_S = 5.0  # what an actor may take to end
STORE_BYTES = 2**28  # of Ray's shared memory: messages pass through it
SETTINGS = {
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this process: Ray keeps the first that it sees
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill our actors for the memory that others of the node take
}


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
        max_batch_sequences: int,
        max_cache_gb: float,
        canary: float | None,
        timeout_s: float,
        pad_token_id: int = 0,
    ) -> None:
        """workers: of all ranks together, a multiple of their number. Else as of VllmEngine."""
        self._workers, self._cluster = list[Worker](), None
        self._threads = ThreadPoolExecutor(max(1, workers))
        ranks = dist.get_world_size() if several() else 1
        if workers < 1 or workers % ranks:
            raise ValueError(f"rollout.engine.workers={workers} must be a multiple of the ranks of the run, {ranks}")
        self._cluster = cluster = Cluster(workers // ranks, *on_node(), device)
        self._workers = [
            Worker(
                cluster.actor(index),
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
            for index in range(workers // ranks)
        ]
        self.canary, self.workers = self._workers[0].canary, len(self._workers)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As of VllmEngine: they lie in memory once, whatever the number of workers."""
        for worker in self._workers:
            worker.synced = False
        found = self._workers[0].keep(weights)
        self._each(lambda worker: worker.take(found))

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        shares = [requests[index :: self.workers] for index in range(self.workers)]
        answered = self._each(lambda worker, share: worker.generate(share, sampling) if share else [], shares)
        return [answered[row % self.workers][row // self.workers] for row in range(len(requests))]

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


class Worker(VllmEngine):
    """A vLLM that lives in an actor."""

    def __init__(self, actor: Callable[..., Any], model: Path, **knobs: Any) -> None:
        """actor: starts one, given what a Child is given."""
        self._actor = actor
        super().__init__(model, **knobs)

    def _process(self) -> Process:
        self.remote = Remote(self._actor(self._python, SERVER, self._options, self._environment))
        return self.remote


class Remote:
    """A Child in an actor, to be talked to as if it were ours."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._process: psutil.Process | None = None  # of the actor, once it has been met

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self._get(self._actor.send.remote(header, arrays, timeout_s), timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        if self._process is None:  # vLLM may take long to start, an actor may not: a dead Ray starts none
            self._process = psutil.Process(self.pids()[0])
        return self._get(self._actor.receive.remote(timeout_s), timeout_s)

    def pids(self) -> tuple[int, int]:
        return self._get(self._actor.pids.remote(), 0)

    @property
    def pid(self) -> int:
        return self.pids()[1]

    def kill(self) -> int:
        code = -int(signal.SIGKILL)
        if ray.is_initialized():  # else all of it is gone; to ask would start another one
            with contextlib.suppress(Lost):
                code = self._get(self._actor.kill.remote(), 0)
            ray.kill(self._actor)
        if self._process is not None:
            _, hanging = psutil.wait_procs([self._process], timeout=GRACE_S)
            for process in hanging:  # one that hangs does not hear of Ray
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        return code

    def _get(self, answer: Any, timeout_s: float) -> Any:
        """Raises Lost if vLLM or its actor is."""
        try:
            return ray.get(answer, timeout=timeout_s + PATIENCE_S)
        except GetTimeoutError:
            raise Lost(f"its actor has said nothing for {timeout_s + PATIENCE_S:.0f} s") from None
        except RayActorError as error:
            raise Lost(f"its actor has died: {error}") from None
        except RayTaskError as error:
            if isinstance(error.cause, Lost):
                raise Lost(str(error.cause)) from None
            raise


class Cluster:
    """Ray on this node, for this rank alone: a place with a GPU (on a CPU machine: a core) for each worker."""

    def __init__(self, workers: int, rank: int, ranks: int, device: torch.device) -> None:
        """workers: of this rank. rank, ranks: its number on this node, and how many the node has."""
        on_gpu = device.type == "cuda"
        self._need = {"num_cpus": int(not on_gpu), "num_gpus": int(on_gpu)}
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(beside(visible(), rank, ranks, workers))} if on_gpu else {}
        self._directory = tempfile.mkdtemp(prefix="rlvr-ray-")  # of sockets: its name must be short
        _init(SETTINGS | gpus, num_cpus=workers, num_gpus=workers * on_gpu, _temp_dir=self._directory)
        self._group = placement_group([{"GPU" if on_gpu else "CPU": 1}] * workers)
        if not self._group.wait(PATIENCE_S):
            self.close()
            raise RuntimeError(f"Ray has no room for {workers} workers: it has {ray.cluster_resources()}")

    def actor(self, index: int) -> Callable[..., Any]:
        """Starts an actor in place number `index`."""
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return ray.remote(Actor).options(scheduling_strategy=place, max_restarts=0, **self._need).remote

    def close(self) -> None:
        ray.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)


def visible() -> list[str]:
    """The GPUs that this run was given, as CUDA_VISIBLE_DEVICES names them."""
    named = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return named or [str(index) for index in range(torch.cuda.device_count())]


def beside(gpus: Sequence[str], rank: int, ranks: int, workers: int) -> Sequence[str]:
    """Those of a node for the workers of one of its ranks: the ranks have the first ones."""
    if len(gpus) < ranks + ranks * workers:
        raise RuntimeError(f"{len(gpus)} GPUs for the {ranks} ranks and {ranks * workers} workers of this node")
    return gpus[ranks + rank * workers :][:workers]


def _init(environment: Mapping[str, str], **settings: Any) -> None:
    """Start Ray, and leave this process as it was: its signals and its environment are its own."""
    stops = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_THE_CHILD)  # as of a Child: it outlives a signal to stop
    kept = os.environ.copy()
    try:
        os.environ.update(environment)
        ray.init(
            "local",
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            **settings,
        )
    finally:
        os.environ.clear()
        os.environ.update(kept)
        signal.signal(signal.SIGTERM, stops)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
