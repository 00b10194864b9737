"""Native engine against `transformers` generate on the same work, alternating; one JSON line per row.

python -m tests.bench.rollout [repeats]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlvr.records import Request, Sampling
from rlvr.rollout.native import NativeEngine

MAZE_3M = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 32,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
PROMPTS, SAMPLES, NEW_TOKENS = 16, 16, 64


def make_model(dtype: torch.dtype) -> PreTrainedModel:
    """Random weights of the maze model, the same for both sides."""
    torch.manual_seed(0)
    architecture = dict(MAZE_3M)
    config = AutoConfig.for_model(architecture.pop("model_type"), **architecture)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def make_prompts() -> list[np.ndarray]:
    """16 prompts of 64 … 76 tokens."""
    generator = np.random.default_rng(0)
    return [generator.integers(2, 32, size=64 + 4 * (i % 4)).astype(np.int64) for i in range(PROMPTS)]


def native(dtype: torch.dtype) -> Callable[[], int]:
    """End token −1 never comes: every response has full length."""
    engine = NativeEngine(make_model(dtype), eos_token_ids=[-1], pad_token_id=0, dtype=str(dtype).split(".")[1])
    requests = [Request(prompt, SAMPLES, key) for key, prompt in enumerate(make_prompts())]
    sampling = Sampling(max_tokens=NEW_TOKENS, seed=0, step=0)
    return lambda: sum(len(c.tokens) for group in engine.generate(requests, sampling) for c in group)


def generate(dtype: torch.dtype) -> Callable[[], int]:
    """`model.generate` with sampling and the scores that log-probabilities need."""
    model, prompts = make_model(dtype), make_prompts()
    width = max(map(len, prompts))
    ids = np.stack([np.pad(prompt, (width - len(prompt), 0)) for prompt in prompts])
    mask = np.stack([np.pad(np.ones_like(prompt), (width - len(prompt), 0)) for prompt in prompts])

    def run() -> int:
        output = model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=SAMPLES,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack(output.logits, dim=1)
        tokens = output.sequences[:, width:]
        torch.log_softmax(logits.float(), dim=-1).gather(2, tokens[:, :, None])
        return tokens.numel()

    return run


def bench(repeats: int = 3) -> dict[str, dict[str, float]]:
    """Median new tokens per second of each side and their ratio, per precision."""
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        sides = {"native": native(dtype), "generate": generate(dtype)}
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(repeats + 1):  # the first is a warm-up
            for name, run in sides.items():
                start = time.perf_counter()
                num_tokens = run()
                if repeat:
                    speeds[name].append(num_tokens / (time.perf_counter() - start))
        row = {f"{name}_tokens_per_s": statistics.median(values) for name, values in speeds.items()}
        row["ratio"] = row["native_tokens_per_s"] / row["generate_tokens_per_s"]
        rows[str(dtype).split(".")[1]] = row
    return rows


if __name__ == "__main__":
    for dtype, row in bench(int(sys.argv[1]) if len(sys.argv) > 1 else 3).items():
        numbers = {name: round(value, 2) for name, value in row.items()}
        print(json.dumps({"dtype": dtype, "threads": torch.get_num_threads(), **numbers}))
