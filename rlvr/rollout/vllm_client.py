"""The client of a vLLM: starts its process, and sends it weights and requests."""

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from rlvr.ledger.cause import Cause
from rlvr.noise import seeds
from rlvr.records import Completion, Progress, Request, Sampling, Supply
from rlvr.rollout.child import Child, EngineLost, Process, ProcessLost
from rlvr.rollout.connection import Connection, Topic
from rlvr.rollout.request_checks import NOT_NUMBERS, check_requests
from rlvr.rollout.vllm_environment import environment
from rlvr.rollout.vllm_requests import AllRequests, TopicSamples, Unanswered, most_of_each
from rlvr.rollout.vllm_server import Arrays

SERVER = Path(__file__).with_name("vllm_server.py")
START_TIMEOUT_S = 1800.0  # loading from a cold network disk, compiling
Start = Callable[[str, Path, Mapping[str, Any], Mapping[str, str]], Process]  # as Child is constructed


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


class VllmClient:
    """Several threads may sample, while one of them, or another, gives the process new weights.

    A process that ends or hangs is not replaced: every call of its client then raises EngineLost. A sample's noise is
    seeded with (seed, step, request, sample): it does not depend on the batch.
    """

    def __init__(self, knobs: VllmKnobs, start: Start = Child, *, name: str = "vLLM", sleeps: bool) -> None:
        """The process starts at once; the first use waits until it is ready. sleeps: whether it is ever put to sleep.

        start: starts the process, on this node or another one. name: of the process, in messages.
        """
        self.timeout_s, self.python = knobs.timeout_s, knobs.python or sys.executable
        self._name, self._eos = f"{name} ({self.python})", sorted(knobs.eos_token_ids)
        self._most_running = knobs.max_batch_sequences
        self._starting, self._max_tokens = threading.Lock(), 0  # of prompt and response together; 0 until it is ready
        kept = ("dtype", "eager", "max_cache_gb", "max_batch_sequences", "tensor_parallel")
        options = {"model": str(knobs.model), **{name: getattr(knobs, name) for name in kept}, "sleeps": sleeps}
        variables = environment(knobs.device, eager=knobs.eager, gpus=knobs.tensor_parallel)
        self.process = start(self.python, SERVER, options, variables)
        self._connection = Connection(self.process)
        # Ends the process, once. Called without us, too: the engine of a run that could not be set up is never closed.
        self.end = weakref.finalize(self, self._connection.end)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """Context with the connection, once the process is ready. Raises EngineLost if it is lost before or in it."""
        try:
            with self._starting:
                if not self._max_tokens:
                    self._max_tokens = self.process.receive(START_TIMEOUT_S)[0]["max_tokens"]
            yield self._connection
        except ProcessLost as lost:
            event, cause = ("was lost", Cause.NODE) if self._max_tokens else ("did not start", Cause.ERROR)
            self.end()
            raise EngineLost(f"{self._name} {event}: {lost}{advice(str(lost))}", cause) from lost

    # --- weights ---

    def take_weights(self, header: dict[str, Any], version: int) -> None:
        """Have the process load new weights, of which the message `header` describes where they are."""
        with self.connected() as connection:
            connection.version = version  # of its answers once it has loaded them
            self._exchange(connection, {**header, "to_version": version})
            connection.begins_with = version

    def join(self, header: dict[str, Any]) -> str:
        """Join a group to which weights are broadcast. Returns why joining failed; "" if it did not."""
        with self.connected() as connection:
            return str(self._exchange(connection, {"do": "join", **header})["why"])

    def sleep(self) -> None:
        """Let the process free its memory, until it takes weights."""
        with self.connected() as connection:
            self._exchange(connection, {"do": "sleep"})

    def _exchange(self, connection: Connection, header: dict[str, Any]) -> dict[str, Any]:
        """The answer to a message, which the process answers from the newest weights."""
        with connection.topic() as topic:
            topic.send(header, {}, self.timeout_s)
            answer = topic.receive(self.timeout_s)[0]
        if answer["version"] != connection.version:
            raise wrong_weights(answer["version"], connection.version)
        return answer

    # --- samples ---

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests.

        With top_p < 1 vLLM reports only probabilities of the truncated distribution: `logp` is then NaN, unknown.
        """
        supply = AllRequests(dict(enumerate(requests)), sampling)
        self.generate_stream(supply)
        return [supply.sampled.get(row, ()) for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine."""
        self.generate_stream(AllRequests(dict(enumerate(requests)), sampling, progress))

    def generate_stream(self, supply: Supply, workers: int = 1) -> None:
        """See StreamingEngine. workers: how many share the supply."""
        with self.connected() as connection, connection.topic() as topic:
            self._sample(connection, topic, supply, workers)

    def _sample(self, connection: Connection, topic: Topic, supply: Supply, workers: int) -> None:
        oldest = connection.begins_with  # newer weights may be on their way to the process
        samples, unanswered = TopicSamples(), Unanswered()
        while not supply.enough:
            num_running = sum(request.num_samples for request, _ in unanswered.values())
            room = min(self._most_running, most_of_each(supply, workers)) - num_running
            fresh = {row: (request, sampling) for row, request, sampling in supply.begin(room, connection.begins_with)}
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
        shared = {name: getattr(sampling, name) for name in ("max_tokens", "temperature", "top_p")}
        shared["stop_token_ids"] = [token for token in self._eos if token >= 0]
        header = {"do": "generate", "first": samples.number(unanswered), "sampling": shared}
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
