"""The client of a vLLM: starts its process, sends it weights and requests, and replaces it when it is lost."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from rlvr.noise import seeds
from rlvr.records import Completion, EngineLost, Progress, Request, Sampling, Supply
from rlvr.rollout.child import Child, Process, ProcessLost
from rlvr.rollout.connection import Connection, Topic
from rlvr.rollout.request_checks import NOT_NUMBERS, check_requests, check_synced
from rlvr.rollout.vllm_environment import environment
from rlvr.rollout.vllm_requests import AllRequests, TopicSamples, Unanswered
from rlvr.rollout.vllm_server import Arrays

log = logging.getLogger(__name__)
T = TypeVar("T")

SERVER = Path(__file__).with_name("vllm_server.py")
START_TIMEOUT_S = 1800.0  # loading from a cold network disk, compiling
ATTEMPTS = 3  # processes that may end or hang over one request before the run fails


@dataclass(kw_only=True, eq=False)
class VllmKnobs:
    """The parameters of every engine that samples with vLLM; `conf/rollout/vllm.yaml` describes the knobs."""

    model: Path = field(kw_only=False)  # directory of the base policy, which is sampled until the first `sync`
    device: torch.device  # of this rank
    eos_token_ids: Sequence[int]
    dtype: Literal["float32", "bfloat16", "float16"]
    python: str | None
    eager: bool
    max_batch_sequences: PositiveInt
    max_cache_gb: PositiveFloat | None  # None in configs alone: the caller passes what the GPU has left for the cache
    canary: PositiveFloat | None
    timeout_s: PositiveFloat
    tensor_parallel: PositiveInt = 1
    pad_token_id: int = 0  # not used: vLLM pads nothing


@dataclass(frozen=True)
class Host:
    """Where the process of a vLLM runs: by default on this node; or at a place of rlvr/rollout/ray_cluster.py."""

    start: Callable[[str, Path, Mapping[str, Any], Mapping[str, str]], Process] = Child
    # (weights that lie in a memory file of this node, their version) → the message to the process about them
    locate: Callable[[dict[str, Any], int], dict[str, Any]] = lambda weights, _: weights


class VllmClient:
    """Several threads may sample, while one of them, or another, gives the process new weights.

    A process that ends or hangs is replaced by one with the same weights, and its requests are sent again with the same
    seeds. A sample's noise is seeded with (seed, step, request, sample): it does not depend on the batch.
    """

    def __init__(self, knobs: VllmKnobs, host: Host, *, sleeps: bool) -> None:
        """The process starts with `start`, or when it is first used. sleeps: whether it is ever put to sleep."""
        self.process: Process | None = None
        self.connection: Connection | None = None  # with that process, once it has started
        self.start_lock = threading.RLock()  # held to start a process, or to change the weights that it starts with
        self.host, self.timeout_s, self.python = host, knobs.timeout_s, knobs.python or sys.executable
        self.version, self.synced = 0, True
        self.sent_version = 0  # of the weights that the process has
        self._weights: dict[str, Any] = {}  # where those of `version` lie: the message that the process is sent
        self._eos = sorted(knobs.eos_token_ids)
        self._options = {
            "model": str(knobs.model),
            "dtype": knobs.dtype,
            "eager": knobs.eager,
            "max_cache_gb": knobs.max_cache_gb,
            "max_batch_sequences": knobs.max_batch_sequences,
            "tensor_parallel": knobs.tensor_parallel,
            "sleeps": sleeps,
        }
        self._environment = environment(knobs.device, eager=knobs.eager, gpus=knobs.tensor_parallel)
        self._max_tokens = 0  # of prompt and response together; known once the process has started
        self._ready = False

    # --- weights ---

    def forget_weights(self) -> None:
        """The stored weights are about to be overwritten: no process may load them until new ones are announced."""
        self.synced, self._weights = False, {"file": "", "tensors": []}

    def announce_weights(self, weights: dict[str, Any]) -> None:
        """The new weights are complete: a process that starts from now on loads these."""
        self._weights, self.version = weights, self.version + 1

    def take_weights(self) -> None:
        """Sample from the announced weights from now on."""
        self._with_process(lambda _: None)  # connecting sends the weights that the process lacks
        self.synced = True

    # --- weights that are broadcast; the caller holds `start_lock`, or acts for a thread that does ---

    def answers(self) -> bool:
        """Whether the process responds and has the newest weights."""
        if self.connection is None or self.sent_version != self.version:
            return False
        try:
            with self.connection.topic() as topic:
                self._stop(topic)
        except ProcessLost:
            return False
        return True

    def join(self, header: dict[str, Any]) -> str:
        """Join a group to which weights are broadcast. Returns why joining failed; "" if it did not."""
        assert self.connection is not None
        try:
            return str(self._exchange(self.connection, {"do": "join", **header})["why"])
        except ProcessLost as lost:
            return str(lost)

    def take_broadcast(self, tensors: Sequence[Any], version: int) -> bool:
        """Wait until the process has received all weights. Returns False if it is lost."""
        assert self.connection is not None
        self.connection.version = version  # the version of its answers once it has all weights
        try:
            with self.connection.topic() as topic:
                topic.send({"do": "take", "to_version": version, "tensors": tensors}, {}, self.timeout_s)
                self.connection.begins_with = version
                topic.receive(self.timeout_s)
        except ProcessLost as lost:
            log.warning("a worker was lost amid new weights: %s", lost)
            return False
        self.sent_version = version
        return True

    # --- sampling ---

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests.

        With top_p < 1 vLLM reports only probabilities of the truncated distribution: `logp` is then NaN, unknown.
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
        """Let the process, if there is one, free its memory. A lost one is replaced by the next sync: a new one would
        start, perhaps for minutes, while other ranks wait in the training step.
        """
        process = self.process
        if process is None:
            return
        try:
            self._exchange_checked(self._connect(process), {"do": "sleep"})
        except ProcessLost as lost:
            log.warning("vLLM was lost before it slept; the next step starts it again: %s", lost)
            self._end_lost(process)

    # --- the process ---

    def start(self) -> Process:
        """The process, which is started if there is none."""
        with self.start_lock:
            if self.process is None:
                self._ready, self.sent_version = False, 0
                self.process = self.host.start(self.python, SERVER, self._options, self._environment)
            return self.process

    def await_start(self, process: Process) -> None:
        if not self._ready:
            self._max_tokens = process.receive(START_TIMEOUT_S)[0]["max_tokens"]
            self._ready = True

    def end(self) -> int:
        """End the process, if there is one. Returns its exit status. A new one is started when it is needed."""
        process, connection = self.process, self.connection
        self.process = self.connection = None
        if process is None:
            return 0
        return process.kill() if connection is None or connection.process is not process else connection.end()

    def __del__(self) -> None:
        self.end()  # an engine of a run that could not be set up is never closed

    def _end_lost(self, process: Process) -> int:
        """End a process that was lost. Returns its exit status; negative if another thread has ended it."""
        with self.start_lock:
            return self.end() if process is self.process else -1

    def _with_process(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`. A process that ends or hangs is replaced, and `work` is repeated."""
        for attempt in range(1, ATTEMPTS + 1):
            process = self.start()
            try:
                return work(self._connect(process))
            except ProcessLost as lost:
                was_ready, code = self._ready, self._end_lost(process)
                # An error of vLLM's own may be caused by another process of this node (memory that was about to be
                # freed, a half-written cache of compiled code); one that occurs twice will most likely occur again.
                if (code > 0 and attempt > 1) or attempt == ATTEMPTS:
                    event = "was lost" if was_ready else "did not start"
                    raise EngineLost(f"vLLM ({self.python}) {event}: {lost}{advice(str(lost))}") from lost
                log.warning("vLLM is started again: %s", lost)
        raise AssertionError

    def _connect(self, process: Process) -> Connection:
        """The connection to a process that has started and has the newest weights. Raises ProcessLost."""
        with self.start_lock:
            if process is not self.process:
                raise ProcessLost("another thread has replaced it")
            self.await_start(process)
            if self.connection is None or self.connection.process is not process:
                self.connection = Connection(process)
            if self.sent_version != self.version:
                weights = self.host.locate(self._weights, self.version)
                self.connection.version = self.sent_version = self.version
                self._exchange_checked(self.connection, {"do": "sync", "to_version": self.version, **weights})
            self.connection.version = self.connection.begins_with = self.sent_version
            return self.connection

    def _exchange(self, connection: Connection, header: dict[str, Any]) -> dict[str, Any]:
        with connection.topic() as topic:
            topic.send(header, {}, self.timeout_s)
            return topic.receive(self.timeout_s)[0]

    def _exchange_checked(self, connection: Connection, header: dict[str, Any]) -> None:
        answer = self._exchange(connection, header)
        if answer["version"] != connection.version:
            raise wrong_weights(answer["version"], connection.version)

    # --- samples ---

    def _sample_on(self, connection: Connection, supply: Supply, unanswered: Unanswered) -> None:
        """Sample until there is enough or the process is lost. Raises ProcessLost if it has answered nothing."""
        unanswered_before = set(unanswered)
        try:
            self._sample(connection, supply, unanswered)
        except ProcessLost as lost:
            if unanswered_before and unanswered_before <= unanswered.keys():
                raise
            self._end_lost(connection.process)
            log.warning("vLLM is started again: %s", lost)

    def _sample(self, connection: Connection, supply: Supply, unanswered: Unanswered) -> None:
        """Sample the requests of `unanswered`, kept up to date, then those of the supply."""
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
                for row, completions in _completed(samples, arrays, unanswered):
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
                "stop_token_ids": [token for token in self._eos if token >= 0],
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

    def _stop(self, topic: Topic) -> None:
        """Stop sampling this topic, and discard the answers that arrive until the process confirms."""
        topic.send({"do": "stop"}, {}, self.timeout_s)
        while not topic.receive(self.timeout_s)[0].get("stopped"):
            pass

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        longest = check_requests(requests, sampling)
        if longest + sampling.max_tokens > self._max_tokens:
            raise ValueError(
                f"A prompt of {longest} tokens and {sampling.max_tokens} new ones exceed the {self._max_tokens} "
                "that the model's positions and the cache allow. Lower rollout.max_tokens, drop long prompts, or raise "
                "rollout.engine.max_cache_gb."
            )


def _completed(
    samples: TopicSamples, answer: Arrays, unanswered: Unanswered
) -> Iterator[tuple[int, tuple[Completion, ...]]]:
    """The rows that are complete now that these samples have arrived, with all their samples."""
    cuts = np.cumsum(answer["lengths"])[:-1]
    parts = (np.split(answer["tokens"], cuts), np.split(answer["logp"], cuts), answer["finished"].tolist())
    for number, tokens, logp, finished in zip(answer["sample"].tolist(), *parts, strict=False):
        row = samples.row[number]
        if group := samples.add(number, _completion(tokens, logp, bool(finished), unanswered[row][1])):
            yield row, group


def _completion(tokens: NDArray[np.int64], logp: NDArray[np.float32], finished: bool, sampling: Sampling) -> Completion:
    if not np.isfinite(logp).all():
        raise FloatingPointError(NOT_NUMBERS)
    logp_sampling = np.zeros_like(logp) if sampling.temperature == 0 else logp.copy()
    logp_policy = logp.copy() if sampling.top_p == 1 else np.full_like(logp, np.nan)
    return Completion(tokens.copy(), logp_policy, logp_sampling, finished)


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


def wrong_weights(answered: int, sent: int) -> RuntimeError:
    return RuntimeError(f"vLLM answers from weights {answered}, it was sent {sent}")
