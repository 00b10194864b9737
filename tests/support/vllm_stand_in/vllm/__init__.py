"""A stand-in for vLLM 0.32 on a GPU, computed by transformers: it checks what rlvr/rollout/vllm_server.py calls, and in
which order.

Calls are logged on standard error. Sleeping weights are not-a-number, and must not be sampled from.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

KNOWN = {
    *("model", "dtype", "skip_tokenizer_init", "generation_config", "enforce_eager", "seed", "max_model_len"),
    *("max_num_seqs", "tensor_parallel_size", "distributed_executor_backend", "kv_cache_memory_bytes"),
    *("logprobs_mode", "enable_sleep_mode", "gpu_memory_utilization", "enable_chunked_prefill", "hf_overrides"),
    "sleep_mode_offload_cudagraph",
}


class SamplingParams:
    def __init__(self, **knobs: Any) -> None:
        self.__dict__.update(knobs)


class TokensPrompt(dict[str, Any]):
    def __init__(self, *, prompt_token_ids: list[int], cache_salt: str) -> None:
        super().__init__(prompt_token_ids=prompt_token_ids, cache_salt=cache_salt)


class Flat(NamedTuple):
    logprobs: list[float]


class Sample(NamedTuple):
    token_ids: list[int]
    logprobs: Flat
    finish_reason: str


class Answer(NamedTuple):
    request_id: str
    outputs: list[Sample]
    finished: bool = True


class ModelConfig(NamedTuple):
    max_model_len: int


class Engine:
    def __init__(self, llm: LLM) -> None:
        self.llm, self.model_config = llm, ModelConfig(4096)
        self.waiting: list[tuple[str, list[int], Any]] = []
        self.seen = set[str]()

    def add_request(self, request_id: str, prompt: TokensPrompt, params: Any) -> str:
        assert request_id not in self.seen, f"request {request_id} is asked twice"
        self.seen.add(request_id)
        self.waiting.append((request_id, list(prompt["prompt_token_ids"]), params))
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        self.waiting = [request for request in self.waiting if request[0] not in request_ids]
        self.llm.log("abort", len(request_ids))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Answer]:
        assert not self.llm.sleeping, self.llm.sleeping
        request_id, prompt, params = self.waiting.pop(0)
        generator = torch.Generator().manual_seed(params.seed % 2**62)
        tokens, logps, reason = list(prompt), list[float](), "length"
        for _ in range(params.max_tokens):
            logits = self.llm.model(torch.tensor([tokens])).logits[0, -1].float() / (params.temperature or 1.0)
            logp = logits.log_softmax(-1)
            drawn = torch.multinomial(logp.exp(), 1, generator=generator) if params.temperature else logp.argmax()
            tokens.append(int(drawn))
            logps.append(float(logp[int(drawn)]))
            if tokens[-1] in params.stop_token_ids:
                reason = "stop"
                break
        self.llm.prefixes_cached = True
        return [Answer(request_id, [Sample(tokens[len(prompt) :], Flat(logps), reason)])]


class LLM:
    @torch.no_grad()
    def __init__(self, *, model: str, dtype: str, **knobs: Any) -> None:
        assert set(knobs) <= KNOWN, set(knobs) - KNOWN
        # Otherwise graphs keep memory that the trainer needs; if vLLM never sleeps, the option slows tensor
        # parallelism.
        assert knobs["sleep_mode_offload_cudagraph"] == knobs["enable_sleep_mode"]
        assert knobs["enable_sleep_mode"] == json.loads(sys.argv[-1])["sleeps"]
        assert knobs["gpu_memory_utilization"] == 0.01  # the trainer uses the GPU when vLLM starts
        head = knobs.get("hf_overrides", {"head_dtype": dtype})["head_dtype"]
        assert head == "float32", "the trainer's logits are float32"
        torch.set_grad_enabled(False)
        self.dtype = getattr(torch, dtype)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=self.dtype).eval().requires_grad_(False)
        self.sleeping, self.prefixes_cached = set[str](), False
        self.processes = knobs["tensor_parallel_size"]
        assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == self.processes, os.environ["CUDA_VISIBLE_DEVICES"]
        assert knobs["distributed_executor_backend"] == (None if self.processes == 1 else "mp")
        self.llm_engine = Engine(self)
        self.log("start", knobs)

    def log(self, *words: Any) -> None:
        print("stand-in for vLLM:", *words, file=sys.stderr, flush=True)

    def sleep(self, level: int) -> None:
        assert level == 2
        assert not self.sleeping
        assert not self.llm_engine.waiting
        self.sleeping, self.prefixes_cached = {"weights", "kv_cache"}, False
        for parameter in self.model.parameters():
            parameter.fill_(torch.nan)
        self.log("sleep")

    def wake_up(self, tags: list[str]) -> None:
        assert set(tags) <= self.sleeping, (tags, self.sleeping)
        self.sleeping -= set(tags)
        self.log("wake", *tags)

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Call a method of the worker by its name, or a function of the worker."""
        if callable(method):
            method(self, *args)
            return
        assert method == "reload_weights"
        self.reload_weights(**(kwargs or {}))

    def reload_weights(self, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        assert "weights" not in self.sleeping
        mine = dict(self.model.named_parameters())
        for name, weight in weights_iterator:
            assert weight.dtype == self.dtype
            mine.pop(name).copy_(weight)
        assert not mine, sorted(mine)
        self.log("weights")

    def apply_model(self, work: Callable[[Any], Any]) -> None:
        raise AssertionError("on a CPU only")

    def reset_prefix_cache(self) -> bool:
        assert not self.sleeping
        self.prefixes_cached = False
        return True
