"""The vLLM engine: one vLLM per rank, or per few, in a process of its own, on their GPUs or on the CPU.

A process of its own because vLLM takes over threads, random numbers and process groups, and because one that crashes
or hangs can be replaced: the requests are then asked again, with the same seeds. The trainer never imports vLLM.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from rlvr.rollout.child import Child, Lost, Process
from rlvr.rollout.conversation import Conversation, Topic
from rlvr.rollout.node import on_node
from rlvr.rollout.node_weights import NodeWeights
from rlvr.rollout.passage import Passage, refusal
from rlvr.rollout.requests import NOT_NUMBERS, check_synced, checked
from rlvr.rollout.vllm_server import Arrays

log = logging.getLogger(__name__)
T = TypeVar("T")
Asked = dict[int, tuple[Request, Sampling]]  # requests that are not answered yet, by row

SERVER = Path(__file__).with_name("vllm_server.py")
START_TIMEOUT_S = 1800.0  # loading from a cold network disk, compiling
ATTEMPTS = 3  # processes that may be killed or hang over one request before the run gives up
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.1}  # nats


class VllmEngine:
    """Samples with vLLM. Every rank has one, or each `tensor_parallel` ranks of a node share one: the first of them
    asks it, the others lend it their GPUs. `sync` and `sleep` are called by all ranks.

    A sample's noise is seeded with (seed, step, request, sample): it does not depend on the batch beyond rounding.
    Several threads may sample, and one of them, or another, give it new weights meanwhile.
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

        `conf/rollout/vllm.yaml` says what the knobs mean. The process starts at once; its first use waits for it.
        """
        self._child: Process | None = None
        self._conversation: Conversation | None = None  # with that child, once it has started
        self._in_memory = NodeWeights()
        self.starting = threading.RLock()  # of whoever starts a process or changes the weights that it starts with
        if max_cache_gb is None:
            raise ValueError(
                "max_cache_gb=None: whoever starts the engine says how much the GPU has left for its cache"
            )
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
        rank, ranks = on_node() if self.on_gpus_of_ranks else (0, 1)
        if ranks > 1 and ranks % tensor_parallel:
            raise ValueError(
                f"rollout.engine.tensor_parallel={tensor_parallel} must divide the {ranks} ranks of a node"
            )
        self._shared = tensor_parallel > 1 and ranks > 1
        self._leads = rank % tensor_parallel == 0
        self.workers = int(self._leads)
        self._environment = environment(device, eager=eager, gpus=tensor_parallel)
        self.version, self.synced = 0, True
        self._weights: dict[str, Any] = {}  # where the weights of `version` lie: what `sync` sends the process
        # Whether weights may go there without main memory, for now: into one process that is on this GPU alone.
        self.within_gpu = device.type == "cuda" and tensor_parallel == 1
        self._passed = False  # whether they are known to
        self._max_tokens = 0  # of prompt and response together; known once the process has started
        self._ready = False
        self._child = self._launch() if self._leads else None

    # --- the Engine protocol ---

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take (Hugging Face parameter name, full tensor) pairs, in any float format. All ranks together.

        A vLLM on the rank's own GPU gets them within its memory, if it can read it. They also lie in the node's main
        memory until the next sync: any other process gets them from there, and one that has to be replaced.
        """
        self.synced = False
        if self.version == 0:
            self.sleep()  # it has the base policy's weights and an empty cache: neither is needed any more
        self._leave_memory()
        with self.starting:
            passage = self._passage()
            self.forget_weights()
            written = self._in_memory.write(weights if passage is None else passage.through(weights), self.dtype)
            if passage is not None:
                self._end(passage)
            self.announce_weights(written)
        self._leave_memory()  # of the weights that were gathered
        self.take_weights()

    def _leave_memory(self) -> None:
        """What the trainer has cached is vLLM's to use."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def forget_weights(self) -> None:
        """They are about to be written over: no process may start from them until others are announced."""
        self.synced, self._weights = False, {"file": "", "tensors": []}

    def announce_weights(self, weights: dict[str, Any]) -> None:
        """A process that starts from now on has the weights that lie there, all of them."""
        self._weights, self.version = weights, self.version + 1

    def take_weights(self) -> None:
        """Sample from the weights that were announced, from now on."""
        if self._leads:
            self._with_process(lambda _: None)  # it is sent whatever it does not have
        self.synced = True

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests.

        With top_p < 1 vLLM says only what the truncated distribution gave: `logp` is then NaN, unknown.
        """
        every = Every(requests, sampling)
        self._generate(every)
        return [every.sampled.get(row, ()) for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """As StoppingEngine says."""
        self._generate(Every(requests, sampling, progress))

    def generate_stream(self, supply: Supply) -> None:
        """As StreamingEngine says."""
        self._stream(supply, {})

    def _stream(self, supply: Supply, asked: Asked) -> None:
        """asked: what runs, all along."""
        while not supply.enough:
            self._with_process(lambda conversation: self._sample_on(conversation, supply, asked))

    def _generate(self, every: Every) -> None:
        check_synced(self.synced)
        asked: Asked = {}
        self._with_process(lambda conversation: self._sample(conversation, every, asked))

    def sleep(self) -> None:
        """Give the GPU's memory back. The engine is of no use until the next `sync`."""
        if self.device.type != "cuda":
            return
        if self._leads:
            self._with_process(lambda conversation: self._request(conversation, {"do": "sleep"}))
        if self._shared:
            dist.barrier()  # the others have their GPUs' memory back, too

    def __del__(self) -> None:
        self.close()  # a run that could not be set up is never closed

    def close(self) -> None:
        if self._child is not None:
            self._end_process()
        self._in_memory.close()

    @property
    def pid(self) -> int | None:
        """Of the process that vLLM lives in."""
        return None if self._child is None else self._child.pid

    # --- the process ---

    def _launch(self) -> Process:
        self._ready, self._sent_version = False, 0  # whether it has started, and the version of its weights
        return self._process()

    def _process(self) -> Process:
        return Child(self._python, SERVER, self._options, self._environment)

    def _with_process(self, work: Callable[[Conversation], T]) -> T:
        """What `work` gives. A process that dies or hangs is replaced by one with the same weights, and asked again."""
        assert self._leads, "the first of the ranks that share a vLLM asks it"
        for attempt in range(1, ATTEMPTS + 1):
            with self.starting:
                child = self._child = self._child or self._launch()
            try:
                return work(self._conversation_with(child))
            except Lost as lost:
                was_ready, code = self._ready, self._drop(child)
                # What raised by itself may have met another process of this node (the memory that one was about to give
                # back, its half-written cache of compiled code); what does so twice will most likely raise again.
                if (code > 0 and attempt > 1) or attempt == ATTEMPTS:
                    event = "was lost" if was_ready else "did not start"
                    raise EngineLost(f"vLLM ({self._python}) {event}: {lost}{advice(str(lost))}") from lost
                log.warning("vLLM is started again: %s", lost)
        raise AssertionError

    def _conversation_with(self, child: Process) -> Conversation:
        """Once it has started and has the newest weights. Raises Lost."""
        with self.starting:
            if child is not self._child:
                raise Lost("another thread has replaced it")
            self._await_start(child)
            if self._conversation is None or self._conversation.process is not child:
                self._conversation = Conversation(child)
            if self._sent_version != self.version:
                self._send_weights(self._conversation)
            self._conversation.version = self._conversation.begins_with = self._sent_version
            return self._conversation

    def _drop(self, child: Process) -> int:
        """End a process that was lost. Returns its exit status; negative if another thread has ended it."""
        with self.starting:
            return self._end_process() if child is self._child else -1

    def _end_process(self) -> int:
        child, conversation = self._child, self._conversation
        assert child is not None
        self._child = self._conversation = None
        return child.kill() if conversation is None or conversation.process is not child else conversation.end()

    def _await_start(self, child: Process) -> None:
        if not self._ready:
            self._max_tokens = child.receive(START_TIMEOUT_S)[0]["max_tokens"]
            self._ready = True

    def _answer_to(self, conversation: Conversation, header: dict[str, Any]) -> dict[str, Any]:
        with conversation.topic() as topic:
            topic.send(header, {}, self.timeout_s)
            return topic.receive(self.timeout_s)[0]

    def _request(self, conversation: Conversation, header: dict[str, Any]) -> None:
        answer = self._answer_to(conversation, header)
        if answer["version"] != conversation.version:
            raise wrong_weights(answer["version"], conversation.version)

    def _send_weights(self, conversation: Conversation) -> None:
        weights = self._weights_for(conversation.process)
        conversation.version = self._sent_version = self.version
        self._request(conversation, {"do": "sync", "to_version": self.version, **weights})

    def _weights_for(self, child: Process) -> dict[str, Any]:
        """Where it finds them: in the memory of this node, which it shares."""
        return self._weights

    # --- samples ---

    def _sample_on(self, conversation: Conversation, supply: Supply, asked: Asked) -> None:
        """Until there is enough or the process is lost. Raises Lost if nothing came of this one."""
        asked_before = set(asked)
        try:
            self._sample(conversation, supply, asked)
        except Lost as lost:
            if asked_before and asked_before <= asked.keys():
                raise
            self._drop(conversation.process)
            log.warning("vLLM is started again: %s", lost)

    def _sample(self, conversation: Conversation, supply: Supply, asked: Asked) -> None:
        """Sample what the supply gives, and before that what was asked of a process that is no more. asked: all that
        runs, from then on."""
        oldest = conversation.begins_with  # newer weights may be on their way to it
        with conversation.topic() as topic:
            samples = Samples()
            self._ask(topic, samples, asked)
            while not supply.enough:
                room = self._options["max_batch_sequences"] - sum(each.num_samples for each, _ in asked.values())
                version = conversation.begins_with
                fresh = {row: (request, sampling) for row, request, sampling in supply.begin(room, version)}
                asked |= fresh
                self._ask(topic, samples, fresh)
                if not asked:
                    supply.wait()
                    continue
                answer, arrays = topic.receive(self.timeout_s)
                if not oldest <= answer["version"] <= conversation.version:
                    raise wrong_weights(answer["version"], conversation.version)
                for row, completions in self._completed(samples, arrays, asked):
                    del asked[row]
                    supply.deliver(row, completions, answer["version"])
            if asked:
                self._stop(topic)

    def _ask(self, topic: Topic, samples: Samples, asked: Asked) -> None:
        if not asked:
            return
        requests, (sampling, *_) = [each for each, _ in asked.values()], [each for _, each in asked.values()]
        self._check_requests(requests, sampling)
        assert len({(each.max_tokens, each.temperature, each.top_p) for _, each in asked.values()}) == 1
        header = {
            "do": "generate",
            "first": samples.number(asked),
            "sampling": {
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_token_ids": [e for e in self.eos if e >= 0],
            },
        }
        own_seeds = [
            seeds(each.seed, each.step, [request.key], range(request.first, request.first + request.num_samples))
            for request, each in asked.values()
        ]
        arrays = {
            "tokens": np.concatenate([request.prompt for request in requests]).astype(np.int64),
            "lengths": np.array([len(request.prompt) for request in requests]),
            "prompt": np.repeat(np.arange(len(requests)), [request.num_samples for request in requests]),
            "seed": np.concatenate(own_seeds),
        }
        topic.send(header, arrays, self.timeout_s)

    def _completed(
        self, samples: Samples, answer: Arrays, asked: Asked
    ) -> Iterator[tuple[int, tuple[Completion, ...]]]:
        """The rows whose samples are all there, now that these have come."""
        cuts = np.cumsum(answer["lengths"])[:-1]
        parts = (np.split(answer["tokens"], cuts), np.split(answer["logp"], cuts), answer["finished"].tolist())
        for number, tokens, logp, finished in zip(answer["sample"].tolist(), *parts, strict=False):
            row = samples.row[number]
            completion = self._completion(tokens, logp, bool(finished), asked[row][1])
            if group := samples.add(number, completion):
                yield row, group

    def _stop(self, topic: Topic) -> None:
        """Have it sample no more of this, and hear what it has said meanwhile."""
        topic.send({"do": "stop"}, {}, self.timeout_s)
        while not topic.receive(self.timeout_s)[0].get("stopped"):
            pass

    def _completion(
        self, tokens: NDArray[np.int64], logp: NDArray[np.float32], finished: bool, sampling: Sampling
    ) -> Completion:
        if not np.isfinite(logp).all():
            raise FloatingPointError(NOT_NUMBERS)
        drawn = np.zeros_like(logp) if sampling.temperature == 0 else logp
        return Completion(
            tokens.copy(), logp.copy() if sampling.top_p == 1 else np.full_like(logp, np.nan), drawn, finished
        )

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        longest = checked(requests, sampling)
        if longest + sampling.max_tokens > self._max_tokens:
            raise ValueError(
                f"A prompt of {longest} tokens and {sampling.max_tokens} new ones exceed the {self._max_tokens} "
                "that the model's positions and the cache allow. Lower rollout.max_tokens, drop long prompts, or raise "
                "rollout.engine.max_cache_gb."
            )

    # --- weights ---

    def _passage(self) -> Passage | None:
        """A way for the next weights within the GPU; None: they go through main memory. The log says which, once."""
        if not self.within_gpu:
            return None
        child = self._child = self._child or self._launch()
        try:
            self._await_start(child)
        except Lost:
            return None  # `take_weights` finds it lost, too
        passage = None
        try:
            why = "" if self._passed else refusal(child, self.timeout_s)
            if not why:
                passage = Passage(child, self.version + 1, dtype=self.dtype, timeout_s=self.timeout_s)
        except Lost as lost:
            why = str(lost)
        if passage is None:
            self._through_main_memory(why)
            return None
        if not self._passed:
            log.info("weights go to vLLM within the GPU, by CUDA IPC")
            self._passed = True
        return passage

    def _end(self, passage: Passage) -> None:
        """After a transfer that failed, replace the process by one that loads the weights from main memory."""
        if passage.arrived:
            self._sent_version = self.version + 1
            return
        self._through_main_memory(passage.failure)
        if self._child is not None:
            self._end_process()  # it may have a part of the weights

    def _through_main_memory(self, why: str) -> None:
        log.warning("weights go to vLLM through main memory, not within the GPU: %s", why)
        self.within_gpu = False


class Samples:
    """Those of a topic: numbered as they are asked, whole groups as they come."""

    def __init__(self) -> None:
        self.row: list[int] = []  # of each sample, by number
        self._missing: dict[int, int] = {}  # by row
        self._came: dict[int, dict[int, Completion]] = {}  # by row and number

    def number(self, asked: Asked) -> int:
        """Give all samples of these rows a number. Returns the first of them."""
        first = len(self.row)
        for row, (request, _) in asked.items():
            self.row += [row] * request.num_samples
            self._missing[row], self._came[row] = request.num_samples, {}
        return first

    def add(self, number: int, completion: Completion) -> tuple[Completion, ...]:
        """All samples of its row in order, if this is the last of them to come; else none."""
        row = self.row[number]
        self._came[row][number] = completion
        self._missing[row] -= 1
        if self._missing[row]:
            return ()
        del self._missing[row]
        return tuple(completion for _, completion in sorted(self._came.pop(row).items()))


@dataclass
class Every:
    """Supply of requests that are all asked at once: `enough` when all are answered, or somebody says so."""

    requests: Sequence[Request]
    sampling: Sampling
    progress: Progress | None = None
    sampled: dict[int, tuple[Completion, ...]] = field(default_factory=dict[int, tuple[Completion, ...]])
    _asked: bool = False

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        if self._asked:
            return []
        self._asked = True
        return [(row, request, self.sampling) for row, request in enumerate(self.requests)]

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        self.sampled[row] = samples
        if self.progress is not None:
            self.progress.take(row, samples)

    def wait(self) -> None:
        raise AssertionError("all are asked, and not all are answered")

    @property
    def enough(self) -> bool:
        return len(self.sampled) == len(self.requests) or (self.progress is not None and self.progress.enough)


def advice(words: str) -> str:
    """What to do about the last words of a vLLM."""
    if "out of memory" in words:
        return " Lower rollout.engine.max_cache_gb."
    if "busy or unavailable" in words:
        return (
            " The GPU may be for one process alone, EXCLUSIVE_PROCESS (nvidia-smi -q -d COMPUTE): pass another "
            "partition, or rollout=ray with GPUs of its own."
        )
    return ""


def tolerance(dtype: str, canary: float | None) -> Tolerance:
    """Of log-probabilities beside the trainer's, in nats. canary: None: as that dtype rounds."""
    limit = TOLERANCE[dtype] if canary is None else canary
    return Tolerance.exact(limit) if dtype == "float32" else Tolerance.rounded(limit)


def wrong_weights(answered: int, sent: int) -> RuntimeError:
    return RuntimeError(f"vLLM answers from weights {answered}, it was given {sent}")


def environment(device: torch.device, *, eager: bool, gpus: int = 1) -> dict[str, str]:
    """Of the process: our own without what makes it a rank of ours, and with so many GPUs from the rank's on."""
    ours = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    theirs = ("TORCHELASTIC_", "ROLE_", "RAY_")
    ours |= {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}  # sleeping vLLM moves memory by other means
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(theirs)}
    chosen = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: what is killed is all there is
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every rank's threads are bound to the same cores
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TRITON_F32_DEFAULT": "ieee",  # else its attention rounds float32 to 10 bits: 1e-3 nats off and more
        "GLOO_SOCKET_IFNAME": "lo",  # all of it is on one node, where the rank's interface may have another name
    }
    if eager:
        chosen["TORCHDYNAMO_DISABLE"] = "1"  # else small functions are still compiled: 20 s at the first token
    if gpus > 1:  # it has a process for each
        chosen["NCCL_SOCKET_IFNAME"] = "lo"
    if device.type == "cuda":
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        index = device.index or 0
        own = visible[index : index + gpus] if visible else map(str, range(index, index + gpus))
        chosen["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return {"VLLM_LOGGING_LEVEL": "ERROR", **kept, **chosen}
