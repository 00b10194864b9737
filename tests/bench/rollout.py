"""Native engine beside `generate` of transformers: new tokens per second with log-probs, on the same work."""

import itertools
from collections.abc import Callable, Iterator

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
PROMPTS, SAMPLES, NEW_TOKENS, ROUNDS = 16, 16, 64, 3
DTYPES = ("float32", "bfloat16")


def make_model(dtype: str) -> PreTrainedModel:
    """Random weights of the maze model, the same for both sides."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**MAZE_3M)
    made = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return made.eval()


def make_prompts() -> list[np.ndarray]:
    """16 prompts of 64 … 76 tokens."""
    generator = np.random.default_rng(0)
    return [generator.integers(2, 32, size=64 + 4 * (i % 4)).astype(np.int64) for i in range(PROMPTS)]


def native(dtype: str) -> NativeEngine:
    """End token −1 never comes: every response has full length."""
    return NativeEngine(make_model(dtype), eos_token_ids=[-1], pad_token_id=0, dtype=dtype)


def sampling(engine: Engine, new_tokens: int) -> Callable[[], None]:
    """A function that samples all responses, other ones at each call."""
    requests = [Request(prompt, SAMPLES, key) for key, prompt in enumerate(make_prompts())]
    steps = itertools.count()

    def sample() -> None:
        groups = engine.generate(requests, Sampling(max_tokens=new_tokens, seed=0, step=next(steps)))
        assert sum(len(c.tokens) for group in groups for c in group) == num_tokens(new_tokens)

    return sample


def num_tokens(new_tokens: int) -> int:
    return PROMPTS * SAMPLES * new_tokens


def generating(dtype: str, new_tokens: int) -> Callable[[], None]:
    """`model.generate` with sampling and the scores that log-probabilities need."""
    model, prompts = make_model(dtype), make_prompts()
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
            num_return_sequences=SAMPLES,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack(output.logits, dim=1)
        torch.log_softmax(logits.float(), dim=-1).gather(2, output.sequences[:, width:, None])

    return generate


def rows(*, quick: bool) -> Iterator[Row]:
    new_tokens = 8 if quick else NEW_TOKENS
    for dtype in DTYPES:
        sides = {"ours": sampling(native(dtype), new_tokens), "peer": generating(dtype, new_tokens)}
        seconds = in_turn({name: timed(side) for name, side in sides.items()}, 1 if quick else ROUNDS)
        ours, peer = (num_tokens(new_tokens) / seconds[name] for name in ("ours", "peer"))
        yield row(f"rollout, {dtype}", ours, "tokens/s", "transformers generate", peer, target=2.0)
