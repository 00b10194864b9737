"""The vLLM engine: one vLLM per rank, in a process of its own, on the rank's GPU or on the CPU.

A process of its own because vLLM takes over threads, random numbers and process groups, and because one that crashes
or hangs can be replaced: the requests are then asked again, with the same seeds. The trainer never imports vLLM.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
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
from rlvr.records import Completion, Progress, Request, Sampling, Tolerance
from rlvr.rollout.child import Child, Lost, Process
from rlvr.rollout.memory import Memory, write
from rlvr.rollout.node import from_first, on_node, several
from rlvr.rollout.passage import Passage, refusal
from rlvr.rollout.vllm_server import Arrays

log = logging.getLogger(__name__)
T = TypeVar("T")

SERVER = Path(__file__).with_name("vllm_server.py")
START_TIMEOUT_S = 1800.0  # loading from a cold network disk, compiling
ATTEMPTS = 3  # processes that may be killed or hang over one request before the run gives up
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3, "float16": 0.1}  # nats
ALIGNMENT = 64  # bytes


class VllmEngine:
    """Samples with vLLM. Every rank has one; `sync` is called by all ranks.

    A sample's noise is seeded with (seed, step, request, sample): it does not depend on the batch beyond rounding.
    """

    workers = 1

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
        pad_token_id: int = 0,
    ) -> None:
        """model: directory of the base policy, which is sampled until the first `sync`. device: of this rank.

        `conf/rollout/vllm.yaml` says what the knobs mean. The process starts at once; its first use waits for it.
        """
        self._child: Process | None = None
        self._memory: Memory | None = None  # this process's copy of the weights, if it keeps one
        if max_cache_gb is None:
            raise ValueError(
                "max_cache_gb=None: whoever starts the engine says how much the GPU has left for its cache"
            )
        if max_batch_sequences < 1 or max_cache_gb <= 0 or timeout_s <= 0:
            raise ValueError(f"{max_batch_sequences=}, {max_cache_gb=} and {timeout_s=} must be positive")
        self.device, self.eos, self.dtype = device, sorted(eos_token_ids), parse_dtype(dtype)
        limit = TOLERANCE[dtype] if canary is None else canary
        self.canary = Tolerance.exact(limit) if dtype == "float32" else Tolerance.rounded(limit)
        self.timeout_s = timeout_s
        self._python = python or sys.executable
        self._options = {
            "model": str(model),
            "dtype": dtype,
            "eager": eager,
            "max_cache_gb": max_cache_gb,
            "max_batch_sequences": max_batch_sequences,
        }
        self._environment = environment(device, eager=eager)
        self.version, self.synced = 0, True
        self._weights: dict[str, Any] = {}  # where the weights of `version` lie: what `sync` sends the process
        self.within_gpu = device.type == "cuda"  # whether weights may go there without main memory; for now
        self._passed = False  # whether they are known to
        self._max_tokens = 0  # of prompt and response together; known once the process has started
        self._ready = False
        self._child = self._launch()

    # --- the Engine protocol ---

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take (Hugging Face parameter name, full tensor) pairs, in any float format. All ranks together.

        A vLLM on the rank's own GPU gets them within its memory, if it can read it. They also lie in the node's main
        memory until the next sync: any other process gets them from there, and one that has to be replaced.
        """
        self.synced = False
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what the trainer has cached is vLLM's to use
        passage = self._passage()
        written = self.write_weights(weights if passage is None else passage.through(weights))
        if passage is not None:
            self._end(passage)
        self.use_weights(written)

    def write_weights(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        """Put them in main memory, each rank of a node a part of them. Returns where they lie: for `use_weights`, here
        or in another engine of this node.
        """
        self.synced, self._weights = False, {"file": "", "tensors": []}
        process, memory = from_first(self._own_memory())  # all ranks are here: nobody still needs the old ones
        file = f"/proc/{process}/fd/{memory}"
        described = self._write(weights, file)
        if several():
            dist.barrier()  # all of it is there
        return {"file": file, "tensors": described}

    def use_weights(self, weights: dict[str, Any]) -> None:
        """Sample from the weights that lie there from now on."""
        self._weights, self.version = weights, self.version + 1
        self._with_process(lambda _: None)  # it is sent whatever it does not have
        self.synced = True

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests.

        With top_p < 1 vLLM says only what the truncated distribution gave: `logp` is then NaN, unknown.
        """
        header, arrays = self._message(requests, sampling)
        sampled = dict[int, tuple[Completion, ...]]()
        self._with_process(lambda child: self._sample(child, header, arrays, sampling, sampled.__setitem__))
        return [sampled.get(row, ()) for row in range(len(requests))]

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """As StoppingEngine says. What is asked again of a process that replaces a lost one is given again."""
        header, arrays = self._message(requests, sampling)
        self._with_process(lambda child: self._sample(child, header, arrays, sampling, progress.take, progress))

    def _message(self, requests: Sequence[Request], sampling: Sampling) -> tuple[dict[str, Any], Arrays]:
        """What asks the process for samples."""
        if not self.synced:
            raise ValueError("The last sync failed half-way: the engine's weights are a mixture. Sync again first.")
        self._with_process(lambda _: None)  # it has started: its limits are known
        self._check_requests(requests, sampling)
        names = [
            (row, request.first + sample)
            for row, request in enumerate(requests)
            for sample in range(request.num_samples)
        ]
        header = {
            "do": "generate",
            "sampling": {
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "stop_token_ids": [e for e in self.eos if e >= 0],
            },
        }
        arrays = {
            "tokens": np.concatenate([request.prompt for request in requests]).astype(np.int64),
            "lengths": np.array([len(request.prompt) for request in requests]),
            "prompt": np.array([row for row, _ in names]),
            "seed": seeds(sampling.seed, sampling.step, [requests[r].key for r, _ in names], [s for _, s in names]),
        }
        return header, arrays

    def sleep(self) -> None:
        """Give the GPU's memory back. The engine is of no use until the next `sync`."""
        if self.device.type == "cuda":
            self._with_process(lambda child: self._request(child, {"do": "sleep"}, {}))

    def __del__(self) -> None:
        self.close()  # a run that could not be set up is never closed

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

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

    def _with_process(self, work: Callable[[Process], T]) -> T:
        """What `work` gives. A process that dies or hangs is replaced by one with the same weights, and asked again."""
        for attempt in range(1, ATTEMPTS + 1):
            child = self._child = self._child or self._launch()
            try:
                self._await_start(child)
                if self._sent_version != self.version:
                    self._send_weights(child)
                return work(child)
            except Lost as lost:
                code = child.kill()
                self._child = None
                # What raised by itself will most likely raise again.
                raised = code > 0 and (not self._ready or attempt > 1)
                if raised or attempt == ATTEMPTS:
                    event = "was lost" if self._ready else "did not start"
                    raise RuntimeError(f"vLLM ({self._python}) {event}: {lost}") from lost
                log.warning("vLLM is started again: %s", lost)
        raise AssertionError

    def _await_start(self, child: Process) -> None:
        if not self._ready:
            self._max_tokens = child.receive(START_TIMEOUT_S)[0]["max_tokens"]
            self._ready = True

    def _request(self, child: Process, header: dict[str, Any], arrays: Arrays) -> Arrays:
        child.send(header, arrays, self.timeout_s)
        return self._receive(child)

    def _receive(self, child: Process) -> Arrays:
        header, arrays = child.receive(self.timeout_s)
        if header["version"] != self._sent_version:
            raise RuntimeError(f"vLLM answers from weights {header['version']}, it was given {self._sent_version}")
        return arrays

    def _send_weights(self, child: Process) -> None:
        child.send({"do": "sync", "to_version": self.version, **self._weights_for(child)}, {}, self.timeout_s)
        self._sent_version = self.version
        self._receive(child)

    def _weights_for(self, child: Process) -> dict[str, Any]:
        """Where it finds them: in the memory of this node, which it shares."""
        return self._weights

    def _sample(
        self,
        child: Process,
        header: dict[str, Any],
        arrays: Arrays,
        sampling: Sampling,
        take: Callable[[int, tuple[Completion, ...]], None],
        progress: Progress | None = None,
    ) -> None:
        """Give `take` the samples of each request, once all of one are there."""
        child.send(header, arrays, self.timeout_s)
        of_request = arrays["prompt"].tolist()
        missing, sampled = Counter(of_request), defaultdict[int, dict[int, Completion]](dict)
        while missing:
            answer = self._receive(child)
            cuts = np.cumsum(answer["lengths"])[:-1]
            parts = (np.split(answer["tokens"], cuts), np.split(answer["logp"], cuts), answer["finished"].tolist())
            for sample, tokens, logp, finished in zip(answer["sample"].tolist(), *parts, strict=False):
                row = of_request[sample]
                sampled[row][sample] = self._completion(tokens, logp, bool(finished), sampling)
                missing[row] -= 1
                if not missing[row]:
                    del missing[row]
                    group = sampled.pop(row)
                    take(row, tuple(group[number] for number in sorted(group)))
            if missing and progress is not None and progress.enough:
                self._stop(child)
                return

    def _stop(self, child: Process) -> None:
        """Have it sample no more, and hear what it has said meanwhile."""
        child.send({"do": "stop"}, {}, self.timeout_s)
        while not child.receive(self.timeout_s)[0].get("stopped"):
            pass

    def _completion(
        self, tokens: NDArray[np.int64], logp: NDArray[np.float32], finished: bool, sampling: Sampling
    ) -> Completion:
        if not np.isfinite(logp).all():
            raise FloatingPointError("the policy's probabilities are not numbers: its weights have diverged. Lower lr.")
        drawn = np.zeros_like(logp) if sampling.temperature == 0 else logp
        return Completion(
            tokens.copy(), logp.copy() if sampling.top_p == 1 else np.full_like(logp, np.nan), drawn, finished
        )

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
            raise ValueError(f"{sampling} is out of range: max_tokens >= 1, temperature >= 0, 0 < top_p <= 1")
        lengths = [len(request.prompt) for request in requests]
        if min(lengths) < 1:
            raise ValueError("A prompt has no token: sampling needs at least one, for example a begin token.")
        if max(lengths) + sampling.max_tokens > self._max_tokens:
            raise ValueError(
                f"A prompt of {max(lengths)} tokens and {sampling.max_tokens} new ones exceed the {self._max_tokens} "
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
            return None  # `use_weights` finds it lost, too
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
        """The process has what passed, or else is replaced by one that reads main memory."""
        if passage.arrived:
            self._sent_version = self.version + 1
            return
        self._through_main_memory(passage.failure)
        if self._child is not None:
            self._child.kill()  # it may have a part of the weights
            self._child = None

    def _through_main_memory(self, why: str) -> None:
        log.warning("weights go to vLLM through main memory, not within the GPU: %s", why)
        self.within_gpu = False

    def _own_memory(self) -> tuple[int, int]:
        """The process and descriptor of the memory that a node's weights lie in: of its first rank; else zeros."""
        if on_node()[0]:
            return 0, 0
        if self._memory is None:
            self._memory = Memory()
        return os.getpid(), self._memory.number

    def _write(self, weights: Iterable[tuple[str, Tensor]], file: str) -> list[Any]:
        """Write them one after the other; of those this rank its part. Returns name, dtype, shape, place of each."""
        rank, ranks = on_node()
        described, place = list[Any](), 0
        with Path(file).open("r+b", buffering=0) as memory:
            for index, (name, tensor) in enumerate(weights):
                described.append([name, str(self.dtype).split(".")[1], list(tensor.shape), place])
                if index % ranks == rank:
                    data = tensor.detach().to(self.dtype).contiguous().cpu().view(-1).view(torch.uint8).numpy()
                    write(memory.fileno(), data, place)
                size = tensor.numel() * self.dtype.itemsize
                place += -(-size // ALIGNMENT) * ALIGNMENT
        return described


def environment(device: torch.device, *, eager: bool) -> dict[str, str]:
    """Of the process: our own without what makes it a rank of ours, and with one GPU at most."""
    ours = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    theirs = ("TORCHELASTIC_", "ROLE_", "RAY_")
    ours |= {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}  # sleeping vLLM moves memory by other means
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(theirs)}
    chosen = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: what is killed is all there is
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every rank's threads are bound to the same cores
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if eager:
        chosen["TORCHDYNAMO_DISABLE"] = "1"  # else small functions are still compiled: 20 s at the first token
    if device.type == "cuda":
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        index = device.index or 0
        chosen["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)
    return {"VLLM_LOGGING_LEVEL": "ERROR", **kept, **chosen}
