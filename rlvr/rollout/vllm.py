"""The vLLM engine: one vLLM per rank, or per few ranks, in a process of its own, on their GPUs or on the CPU.

vLLM has its own process because it takes over threads, random numbers and process groups, and because a process that
crashes or hangs can be replaced: its requests are then sent again, with the same seeds. The trainer never imports
vLLM.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.model.load import parse_dtype
from rlvr.noise import seeds
from rlvr.records import Completion, EngineLost, Progress, Request, Sampling, Supply, Tolerance
from rlvr.rollout.child import Child, Process, ProcessLost
from rlvr.rollout.connection import Connection, Topic
from rlvr.rollout.ipc_transfer import IpcTransfer, refusal
from rlvr.rollout.node import rank_on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.request_checks import NOT_NUMBERS, check_requests, check_synced
from rlvr.rollout.vllm_environment import environment
from rlvr.rollout.vllm_requests import AllRequests, TopicSamples, Unanswered
from rlvr.rollout.vllm_server import Arrays

log = logging.getLogger(__name__)
T = TypeVar("T")

SERVER = Path(__file__).with_name("vllm_server.py")
START_TIMEOUT_S = 1800.0  # loading from a cold network disk, compiling
ATTEMPTS = 3  # processes that may end or hang over one request before the run fails
MOST_LOSSES = 2  # processes lost amid transfers within the GPU, one after another, before these are given up
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.1}  # nats


class VllmEngine:
    """Samples with vLLM. Every rank has one, or each `tensor_parallel` ranks of a node share one: the first of them
    sends it requests, the others provide their GPUs. `sync` and `sleep` are called by all ranks.

    A sample's noise is seeded with (seed, step, request, sample): it does not depend on the batch beyond rounding.
    Several threads may sample, while one of them, or another, gives the engine new weights.
    """

    on_gpus_of_ranks = True

    def __init__(
        self,
        model: Path,
        *,
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
        """model: directory of the base policy, which is sampled until the first `sync`. device: of this rank.

        `conf/rollout/vllm.yaml` describes the knobs. The process starts at once; the first use waits until it is
        ready.
        """
        self._child: Process | None = None
        self._connection: Connection | None = None  # with that child, once it has started
        self._node_weights = NodeWeights()
        self.start_lock = threading.RLock()  # held to start a process, or to change the weights that it starts with
        if max_cache_gb is None:
            raise ValueError("max_cache_gb=None: the caller must pass how much memory the GPU has left for the cache")
        if max_batch_sequences < 1 or max_cache_gb <= 0 or timeout_s <= 0:
            raise ValueError(f"{max_batch_sequences=}, {max_cache_gb=} and {timeout_s=} must be positive")
        self.device, self.eos, self.dtype = device, sorted(eos_token_ids), parse_dtype(dtype)
        self.canary = tolerance(dtype, canary)
        self.timeout_s = timeout_s
        self._python = python or sys.executable
        self._options = {
            "model": str(model),
            "dtype": dtype,
            "eager": eager,
            "max_cache_gb": max_cache_gb,
            "max_batch_sequences": max_batch_sequences,
            "tensor_parallel": tensor_parallel,
            "sleeps": self.on_gpus_of_ranks,
        }
        rank, ranks = rank_on_node() if self.on_gpus_of_ranks else (0, 1)
        if ranks > 1 and ranks % tensor_parallel:
            raise ValueError(
                f"rollout.engine.tensor_parallel={tensor_parallel} must divide the {ranks} ranks of a node"
            )
        self._shares_vllm = tensor_parallel > 1 and ranks > 1
        self._is_leader = rank % tensor_parallel == 0
        self.workers = int(self._is_leader)
        self._environment = environment(device, eager=eager, gpus=tensor_parallel)
        self.version, self.synced = 0, True
        # location of the weights of `version`: the message that `sync` sends the process
        self._weights: dict[str, Any] = {}
        # Whether weights are sent by CUDA IPC, for now: to a single process on this GPU alone.
        self.within_gpu = device.type == "cuda" and tensor_parallel == 1
        self._ipc_works = False  # whether this process is known to take a transfer by CUDA IPC
        self._num_losses = 0  # processes lost amid such transfers, one after another
        self._max_tokens = 0  # of prompt and response together; known once the process has started
        self._ready = False
        self._child = self._launch() if self._is_leader else None

    # --- the Engine protocol ---

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take (Hugging Face parameter name, full tensor) pairs, in any float format. Called by all ranks together.

        A vLLM on the rank's own GPU receives them within the GPU's memory, if it can open it. They also stay in the
        node's main memory until the next sync, for every other process and for one that replaces a lost process.
        """
        self.synced = False
        if self.version == 0:
            self.sleep()  # frees the base policy's weights and the empty cache: neither is needed any more
        self._release_cached_memory()
        with self.start_lock:
            transfer = self._open_transfer()
            self.forget_weights()
            written = self._node_weights.write(weights if transfer is None else transfer.through(weights), self.dtype)
            if transfer is not None:
                self._finish_transfer(transfer)
            self.announce_weights(written)
        self._release_cached_memory()  # the memory of the gathered weights
        self.take_weights()

    def _release_cached_memory(self) -> None:
        """Return the memory that torch has cached to the GPU, for vLLM."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget_weights(self) -> None:
        """The stored weights are about to be overwritten: no process may load them until new ones are announced."""
        self.synced, self._weights = False, {"file": "", "tensors": []}

    def announce_weights(self, weights: dict[str, Any]) -> None:
        """The new weights are complete: a process that starts from now on loads these."""
        self._weights, self.version = weights, self.version + 1

    def take_weights(self) -> None:
        """Sample from the announced weights from now on."""
        if self._is_leader:
            self._with_process(lambda _: None)  # connecting sends the weights that the process lacks
        self.synced = True

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests.

        With top_p < 1 vLLM reports only the probabilities of the truncated distribution: `logp` is then NaN,
        unknown.
        """
        supply = AllRequests(requests, sampling)
        self._generate(supply)
        return [supply.sampled.get(row, ()) for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine."""
        self._generate(AllRequests(requests, sampling, progress))

    def generate_stream(self, supply: Supply) -> None:
        """See StreamingEngine."""
        unanswered: Unanswered = {}  # the requests that run, kept up to date
        while not supply.enough:
            self._with_process(lambda connection: self._sample_on(connection, supply, unanswered))

    def _generate(self, supply: AllRequests) -> None:
        check_synced(self.synced)
        unanswered: Unanswered = {}
        self._with_process(lambda connection: self._sample(connection, supply, unanswered))

    def sleep(self) -> None:
        """Give the GPU's memory back. The engine cannot sample until the next `sync`."""
        if self.device.type != "cuda":
            return
        if self._is_leader and self._child is not None:
            self._put_to_sleep(self._child)
        if self._shares_vllm:
            dist.barrier()  # the memory of the other ranks' GPUs is free, too

    def _put_to_sleep(self, child: Process) -> None:
        """A process that is lost has no memory to give back: the next `sync` replaces it. A new one would start,
        perhaps for minutes, while other ranks wait in the training step.
        """
        try:
            self._exchange_checked(self._connect(child), {"do": "sleep"})
        except ProcessLost as lost:
            log.warning("vLLM was lost before it slept; the next step starts it again: %s", lost)
            self._end_lost_process(child)

    def __del__(self) -> None:
        self.close()  # a run that could not be set up is never closed

    def close(self) -> None:
        if self._child is not None:
            self._end_process()
        self._node_weights.close()

    @property
    def pid(self) -> int | None:
        """Process id of vLLM's process."""
        return None if self._child is None else self._child.pid

    # --- the process ---

    def _launch(self) -> Process:
        self._ready, self._sent_version = False, 0  # whether the process has started, and the version of its weights
        return self.start_process()

    # Where the process runs, and where it finds the weights: a child on this node, unless a subclass decides otherwise.

    def start_process(self) -> Process:
        return Child(self._python, SERVER, self._options, self._environment)

    def location_of_weights(self) -> dict[str, Any]:
        """The location of the newest weights for the process: the memory of this node, which it shares."""
        return self._weights

    def _with_process(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`. A process that ends or hangs is replaced by one with the same weights, and `work` is
        repeated.
        """
        assert self._is_leader, "only the first of the ranks that share a vLLM uses it"
        for attempt in range(1, ATTEMPTS + 1):
            with self.start_lock:
                child = self._child = self._child or self._launch()
            try:
                return work(self._connect(child))
            except ProcessLost as lost:
                was_ready, code = self._ready, self._end_lost_process(child)
                # An error of vLLM's own may be caused by another process of this node (memory that was about to be
                # freed, a half-written cache of compiled code); one that occurs twice will most likely occur again.
                if (code > 0 and attempt > 1) or attempt == ATTEMPTS:
                    event = "was lost" if was_ready else "did not start"
                    raise EngineLost(f"vLLM ({self._python}) {event}: {lost}{advice(str(lost))}") from lost
                log.warning("vLLM is started again: %s", lost)
        raise AssertionError

    def _connect(self, child: Process) -> Connection:
        """The connection to a process that has started and has the newest weights. Raises ProcessLost."""
        with self.start_lock:
            if child is not self._child:
                raise ProcessLost("another thread has replaced it")
            self._await_start(child)
            if self._connection is None or self._connection.process is not child:
                self._connection = Connection(child)
            if self._sent_version != self.version:
                self._send_weights(self._connection)
            self._connection.version = self._connection.begins_with = self._sent_version
            return self._connection

    def _end_lost_process(self, child: Process) -> int:
        """End a process that was lost. Returns its exit status; negative if another thread has ended it."""
        with self.start_lock:
            return self._end_process() if child is self._child else -1

    def _end_process(self) -> int:
        child, connection = self._child, self._connection
        assert child is not None
        self._child = self._connection = None
        return child.kill() if connection is None or connection.process is not child else connection.end()

    def _await_start(self, child: Process) -> None:
        if not self._ready:
            self._max_tokens = child.receive(START_TIMEOUT_S)[0]["max_tokens"]
            self._ready = True

    def _exchange(self, connection: Connection, header: dict[str, Any]) -> dict[str, Any]:
        with connection.topic() as topic:
            topic.send(header, {}, self.timeout_s)
            return topic.receive(self.timeout_s)[0]

    def _exchange_checked(self, connection: Connection, header: dict[str, Any]) -> None:
        answer = self._exchange(connection, header)
        if answer["version"] != connection.version:
            raise wrong_weights(answer["version"], connection.version)

    def _send_weights(self, connection: Connection) -> None:
        weights = self.location_of_weights()
        connection.version = self._sent_version = self.version
        self._exchange_checked(connection, {"do": "sync", "to_version": self.version, **weights})

    # --- samples ---

    def _sample_on(self, connection: Connection, supply: Supply, unanswered: Unanswered) -> None:
        """Sample until there is enough or the process is lost. Raises ProcessLost if it has answered nothing."""
        unanswered_before = set(unanswered)
        try:
            self._sample(connection, supply, unanswered)
        except ProcessLost as lost:
            if unanswered_before and unanswered_before <= unanswered.keys():
                raise
            self._end_lost_process(connection.process)
            log.warning("vLLM is started again: %s", lost)

    def _sample(self, connection: Connection, supply: Supply, unanswered: Unanswered) -> None:
        """Sample the requests of the supply, after those that were sent to a process that is lost. unanswered: the
        requests that run, kept up to date.
        """
        oldest = connection.begins_with  # newer weights may be on their way to the process
        with connection.topic() as topic:
            samples = TopicSamples()
            self._send_requests(topic, samples, unanswered)
            while not supply.enough:
                num_running = sum(request.num_samples for request, _ in unanswered.values())
                room = min(self._options["max_batch_sequences"], supply.most_running) - num_running
                version = connection.begins_with
                fresh = {row: (request, sampling) for row, request, sampling in supply.begin(room, version)}
                unanswered |= fresh
                self._send_requests(topic, samples, fresh)
                if not unanswered:
                    supply.wait()
                    continue
                answer, arrays = topic.receive(self.timeout_s)
                if not oldest <= answer["version"] <= connection.version:
                    raise wrong_weights(answer["version"], connection.version)
                for row, completions in self._completed(samples, arrays, unanswered):
                    del unanswered[row]
                    supply.deliver(row, completions, answer["version"])
            if unanswered:
                self._stop(topic)

    def _send_requests(self, topic: Topic, samples: TopicSamples, unanswered: Unanswered) -> None:
        if not unanswered:
            return
        requests = [request for request, _ in unanswered.values()]
        samplings = [sampling for _, sampling in unanswered.values()]
        sampling = samplings[0]
        self._check_requests(requests, sampling)
        assert len({(s.max_tokens, s.temperature, s.top_p) for s in samplings}) == 1
        header = {
            "do": "generate",
            "first": samples.number(unanswered),
            "sampling": {
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_token_ids": [token for token in self.eos if token >= 0],
            },
        }
        sample_seeds = [
            seeds(s.seed, s.step, [request.key], range(request.first, request.first + request.num_samples))
            for request, s in unanswered.values()
        ]
        arrays = {
            "tokens": np.concatenate([request.prompt for request in requests]).astype(np.int64),
            "lengths": np.array([len(request.prompt) for request in requests]),
            "prompt": np.repeat(np.arange(len(requests)), [request.num_samples for request in requests]),
            "seed": np.concatenate(sample_seeds),
        }
        topic.send(header, arrays, self.timeout_s)

    def _completed(
        self, samples: TopicSamples, answer: Arrays, unanswered: Unanswered
    ) -> Iterator[tuple[int, tuple[Completion, ...]]]:
        """The rows that are complete now that these samples have arrived, with all their samples."""
        cuts = np.cumsum(answer["lengths"])[:-1]
        parts = (np.split(answer["tokens"], cuts), np.split(answer["logp"], cuts), answer["finished"].tolist())
        for number, tokens, logp, finished in zip(answer["sample"].tolist(), *parts, strict=False):
            row = samples.row[number]
            completion = self._completion(tokens, logp, bool(finished), unanswered[row][1])
            if group := samples.add(number, completion):
                yield row, group

    def _stop(self, topic: Topic) -> None:
        """Stop sampling this topic, and discard the answers that arrive until the process confirms."""
        topic.send({"do": "stop"}, {}, self.timeout_s)
        while not topic.receive(self.timeout_s)[0].get("stopped"):
            pass

    def _completion(
        self, tokens: NDArray[np.int64], logp: NDArray[np.float32], finished: bool, sampling: Sampling
    ) -> Completion:
        if not np.isfinite(logp).all():
            raise FloatingPointError(NOT_NUMBERS)
        logp_sampling = np.zeros_like(logp) if sampling.temperature == 0 else logp.copy()
        logp_policy = logp.copy() if sampling.top_p == 1 else np.full_like(logp, np.nan)
        return Completion(tokens.copy(), logp_policy, logp_sampling, finished)

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        longest = check_requests(requests, sampling)
        if longest + sampling.max_tokens > self._max_tokens:
            raise ValueError(
                f"A prompt of {longest} tokens and {sampling.max_tokens} new ones exceed the {self._max_tokens} "
                "that the model's positions and the cache allow. Lower rollout.max_tokens, drop long prompts, or raise "
                "rollout.engine.max_cache_gb."
            )

    # --- weights ---

    def _open_transfer(self) -> IpcTransfer | None:
        """The transfer of the next weights within the GPU; None if they go through main memory. Which of the two is
        logged once.
        """
        if not self.within_gpu:
            return None
        child = self._child = self._child or self._launch()
        try:
            self._await_start(child)
        except ProcessLost:
            return None  # `take_weights` notices the loss, too
        try:
            if not self._ipc_works and (reason := refusal(child, self.timeout_s)):
                self._use_main_memory(reason)
                return None
            transfer = IpcTransfer(child, self.version + 1, dtype=self.dtype, timeout_s=self.timeout_s)
        except ProcessLost as lost:
            self._count_loss(str(lost))
            return None
        if not self._ipc_works:
            log.info("weights go to vLLM within the GPU, by CUDA IPC")
            self._ipc_works = True
        return transfer

    def _finish_transfer(self, transfer: IpcTransfer) -> None:
        """After a failed transfer, end the process; its successor loads the weights from main memory."""
        if transfer.arrived:
            self._sent_version, self._num_losses = self.version + 1, 0
            return
        (self._count_loss if transfer.lost else self._use_main_memory)(transfer.failure)
        if self._child is not None:
            self._end_process()  # the process may have received a part of the weights

    def _count_loss(self, reason: str) -> None:
        """A process lost amid a transfer may have ended for another reason: the next transfer tries its successor."""
        self._ipc_works, self._num_losses = False, self._num_losses + 1
        if self._num_losses == MOST_LOSSES:
            self._use_main_memory(reason)
        else:
            log.warning("weights go to vLLM through main memory this time, not within the GPU: %s", reason)

    def _use_main_memory(self, reason: str) -> None:
        log.warning("weights go to vLLM through main memory, not within the GPU: %s", reason)
        self.within_gpu = False


def advice(message: str) -> str:
    """Advice on the error message of a vLLM; "" if there is none."""
    if "Free memory on device" in message:
        return " Another process uses this GPU (nvidia-smi shows which): end it, or pass another GPU."
    if "gpu_memory_utilization" in message:  # vLLM's own advice, but here the size of the cache is a knob
        return " This means the memory for keys and values: raise rollout.engine.max_cache_gb."
    if "out of memory" in message:
        return " Lower rollout.engine.max_cache_gb."
    if "busy or unavailable" in message:
        return (
            " The GPU may be for one process alone, EXCLUSIVE_PROCESS (nvidia-smi -q -d COMPUTE): pass another "
            "partition, or rollout=ray with GPUs of its own."
        )
    return ""


def tolerance(dtype: str, canary: float | None) -> Tolerance:
    """Tolerated differences from the trainer's log-probabilities, in nats. canary: the limit; None: the dtype's own."""
    limit = TOLERANCE[dtype] if canary is None else canary
    return Tolerance.exact(limit) if dtype == "float32" else Tolerance.rounded(limit)


def wrong_weights(answered: int, sent: int) -> RuntimeError:
    return RuntimeError(f"vLLM answers from weights {answered}, it was sent {sent}")
