"""Native engine beside `generate` of transformers: new tokens per second with log-probs, on the same work."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlvr.records import Engine, Request, Sampling
from rlvr.rollout.native import NativeEngine
from tests.bench.row import Row, in_turn, row, timed

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
SMOLLM2 = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
    "eos_token_id": None,  # vLLM would end a response at the usual one
}
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Sampled:
    """Exactly `new_tokens` tokens of each of `samples` responses to each of `prompts` prompts of 64 … 76 tokens."""

    name: str
    architecture: Mapping[str, Any]
    prompts: int = 16
    samples: int = 16
    new_tokens: int = 64
    rounds: int = 3  # measured, after a warm-up round

    @property
    def num_tokens(self) -> int:
        return self.prompts * self.samples * self.new_tokens


MAZE = Sampled("rollout", MAZE_3M)
PRETRAINED = Sampled("rollout of SmolLM2", SMOLLM2, prompts=8, samples=8, new_tokens=32, rounds=2)


def works(*, quick: bool) -> tuple[Sampled, ...]:
    return (replace(MAZE, new_tokens=8, rounds=1),) if quick else (MAZE, PRETRAINED)


def make_model(work: Sampled, dtype: str) -> PreTrainedModel:
    """Random weights, the same for both sides."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**work.architecture)
    made = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return made.eval()


def make_prompts(work: Sampled) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(2, 32, size=64 + 4 * (i % 4)).astype(np.int64) for i in range(work.prompts)]


def native(work: Sampled, dtype: str) -> NativeEngine:
    """End token −1 never comes: every response has full length."""
    return NativeEngine(make_model(work, dtype), eos_token_ids=[-1], pad_token_id=0, dtype=dtype)


def sampling(engine: Engine, work: Sampled) -> Callable[[], None]:
    """A function that samples all responses, other ones at each call."""
    requests = [Request(prompt, work.samples, key) for key, prompt in enumerate(make_prompts(work))]
    steps = itertools.count()

    def sample() -> None:
        groups = engine.generate(requests, Sampling(max_tokens=work.new_tokens, seed=0, step=next(steps)))
        assert sum(len(c.tokens) for group in groups for c in group) == work.num_tokens

    return sample


def generating(work: Sampled, dtype: str) -> Callable[[], None]:
    """`model.generate` with sampling and the scores that log-probabilities need."""
    model, prompts = make_model(work, dtype), make_prompts(work)
    width = max(map(len, prompts))
    ids = np.stack([np.pad(prompt, (width - len(prompt), 0)) for prompt in prompts])
    mask = np.stack([np.pad(np.ones_like(prompt), (width - len(prompt), 0)) for prompt in prompts])

    def generate() -> None:
        output = model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=work.samples,
            min_new_tokens=work.new_tokens,
            max_new_tokens=work.new_tokens,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack(output.logits, dim=1)
        torch.log_softmax(logits.float(), dim=-1).gather(2, output.sequences[:, width:, None])

    return generate


def rows(*, quick: bool) -> Iterator[Row]:
    for work, dtype in itertools.product(works(quick=quick), DTYPES):
        sides = {"ours": sampling(native(work, dtype), work), "peer": generating(work, dtype)}
        seconds = in_turn({name: timed(side) for name, side in sides.items()}, work.rounds)
        ours, peer = (work.num_tokens / seconds[name] for name in ("ours", "peer"))
        yield row(f"{work.name}, {dtype}", ours, "tokens/s", "transformers generate", peer, target=2.0)
