"""Native engine beside vLLM on the CPU, as runs use them: one model, the same prompts, with log-probabilities."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from rlvr.records import Engine, Request, Sampling
from rlvr.rollout.native import NativeEngine
from rlvr.rollout.vllm import VllmEngine
from tests.bench import rollout

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
REPEATS = 3
Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """New tokens per second; `quick`: without vLLM, whose environment is made on first use."""
    if not quick and not PYTHON.exists():
        subprocess.run(["make", "vllm-env"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    new_tokens = 8 if quick else rollout.NEW_TOKENS
    for dtype in DTYPES:
        with contextlib.ExitStack() as stack:
            engines: list[Engine] = [_native(dtype)]
            if not quick:
                engines.append(stack.enter_context(contextlib.closing(_vllm(dtype))))
            ours, *peers = _speeds(engines, new_tokens, 1 if quick else REPEATS)
        peer = peers[0] if peers else None
        yield {
            "name": f"rollout beside vLLM, {dtype}",
            "value": ours,
            "unit": "tokens/s",
            "peer": peer and "vLLM on the CPU, eager",
            "peer_value": peer,
            "ratio": peer and ours / peer,
            "target": 1.0,
        }


def _native(dtype: Dtype) -> NativeEngine:
    """End token −1 never comes: every response has full length."""
    model = rollout.make_model(getattr(torch, dtype))
    return NativeEngine(model, eos_token_ids=[-1], pad_token_id=0, dtype=dtype)


def _vllm(dtype: Dtype) -> VllmEngine:
    """An engine that has loaded the model, whose directory is temporary."""
    with tempfile.TemporaryDirectory() as directory:
        rollout.make_model(getattr(torch, dtype)).save_pretrained(directory)
        engine = VllmEngine(
            Path(directory),
            device=torch.device("cpu"),
            eos_token_ids=[-1],
            dtype=dtype,
            python=str(PYTHON),
            eager=True,
            max_batch_sequences=512,
            max_cache_gb=1.0,
            canary=None,
            timeout_s=600,
        )
        engine.generate([Request(rollout.make_prompts()[0], 1, 0)], Sampling(max_tokens=1, seed=0, step=0))
    return engine


def _speeds(engines: Sequence[Engine], new_tokens: int, repeats: int) -> list[float]:
    """Median new tokens per second of each engine. They alternate, after a warm-up; each round has other samples."""
    requests = [Request(prompt, rollout.SAMPLES, key) for key, prompt in enumerate(rollout.make_prompts())]
    speeds_of: list[list[float]] = [[] for _ in engines]
    for step in range(repeats + 1):
        for engine, speeds in zip(engines, speeds_of, strict=True):
            began = time.perf_counter()
            groups = engine.generate(requests, Sampling(max_tokens=new_tokens, seed=0, step=step))
            seconds = time.perf_counter() - began
            num_tokens = sum(len(c.tokens) for group in groups for c in group)
            assert num_tokens == len(requests) * rollout.SAMPLES * new_tokens
            if step:
                speeds.append(num_tokens / seconds)
    return [statistics.median(speeds) for speeds in speeds_of]
