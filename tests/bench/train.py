"""Training speed on the 3-million-parameter maze model, as a share of the rate of this machine's matrix products.

    python tests/bench/train.py [--threads N] [--device cuda] [--repeats N] [--matrix N]

One JSON line per row: 32 groups of 16 responses, prompts of about 70 tokens, responses of 32 (`lengths=equal`) or of
4 to 32 (`lengths=mixed`). tokens_per_s counts the tokens of separate sequences (prompt and response, without padding)
for every layout, so that layouts can be compared: it is work done, not tokens read. gemm_share: floating point
operations of the linear layers on the tokens read, over the time and the rate of a square matrix product in the same
precision, measured just before: attention, norms and the optimiser count as loss. rows_over_this: the time of padded
rows over the time of this layout. fsdp_over_plain: time of one optimiser step on a model of 0.13 million parameters,
over that of the module without FSDP in the same layout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import distributed
from rlvr.trainer.actor import Actor
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.knobs import Place
from rlvr.trainer.pack import pack
from tests.trainer.tiny import make_knobs

VOCABULARY = 32


def maze_model(*, hidden: int = 256, layers: int = 4, heads: int = 4) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def rollouts(
    *,
    groups: int,
    samples: int,
    mixed: bool,
    prompt: tuple[int, int] = (64, 77),
    response: int = 32,
    shortest: int = 4,
    vocabulary: int = VOCABULARY,
) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    B, L = groups * samples, prompt[1]
    length = draw(shortest, response + 1, B) if mixed else torch.full((B,), response)
    mask = torch.arange(response) < length[:, None]
    return Batch(
        tokens=draw(1, vocabulary, B, response),
        mask=mask,
        logp_old=torch.full((B, response), -3.4) * mask,
        advantage=torch.randn(B, generator=generator),
        reward=torch.zeros(B),
        group=torch.arange(groups).repeat_interleave(samples),
        prompt=draw(1, vocabulary, groups, L),
        prompt_mask=torch.arange(L) >= L - draw(*prompt, groups)[:, None],
    )


def surrogate(policy: Policy, batch: Batch) -> Terms:
    return Terms(-(policy.logp - batch.logp_old).exp() * batch.advantage[:, None])


def make_trainer(model: Qwen2ForCausalLM, device: torch.device, *, max_tokens: int = 32, **knobs: Any) -> Trainer:
    usual = {"steps": 100, "lr": 1e-5, "clip_norm": 1.0, "betas": (0.9, 0.999)}
    rank, world, _ = distributed.join_group()
    place = Place(device, rank, world, pad_token_id=0, max_tokens=max_tokens)
    return Trainer(model, surrogate, place, make_knobs(**{**usual, **knobs}))


def median_s(work: Callable[[], object], device: torch.device, repeats: int, *, warm: bool = True) -> float:
    """Median seconds of the repeats, after a warm-up if `warm`."""
    times = []
    for _ in range(repeats + warm):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[warm:])


def gemm_rate(dtype: torch.dtype, device: torch.device, n: int | None = None) -> float:
    """FLOP/s of a product of matrices of n rows and columns; None: as many as keep the device busy."""
    n = n or (8192 if device.type == "cuda" else 1024)
    a, b = (torch.randn(n, n, dtype=dtype, device=device) for _ in range(2))
    return 2 * n**3 / median_s(lambda: a @ b, device, 5)


def linear_flops(model: Qwen2ForCausalLM, batch: Batch, num_read: float) -> float:
    """Operations of the matrix products, forward and backward: 3 times 2·weights per token read; the head only on
    response tokens.
    """
    layers = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    return 6 * (layers * num_read + model.lm_head.weight.numel() * int(batch.mask.sum()))


LAYOUTS: dict[str, dict[str, object]] = {"shared": {}, "packed": {"shared_prompt": "never"}, "rows": {"packing": False}}


def rows(
    device: torch.device, repeats: int, batch: Batch, dtype: str, lengths: str, *, matrix: int | None = None
) -> None:
    """Layouts alternate, each after a matrix product, so that a busy machine slows all of them alike."""
    trainers = {name: make_trainer(maze_model(), device, dtype=dtype, **knobs) for name, knobs in LAYOUTS.items()}
    read = {name: trainer.learn(batch)["tokens/train"] for name, trainer in trainers.items()}
    work = int(batch.mask.sum()) + int(batch.prompt_mask.sum(1)[batch.group].sum())
    plain = maze_model()
    rates, seconds = ({name: list[float]() for name in LAYOUTS} for _ in range(2))
    for _ in range(repeats):
        for name, trainer in trainers.items():
            rates[name].append(gemm_rate(getattr(torch, dtype), device, matrix))
            seconds[name].append(median_s(lambda trainer=trainer: trainer.learn(batch), device, 1, warm=False))
    for name in LAYOUTS:
        floats = linear_flops(plain, batch, read[name])
        shares = [floats / s / rate for s, rate in zip(seconds[name], rates[name], strict=True)]
        ratios = [slow / fast for slow, fast in zip(seconds["rows"], seconds[name], strict=True)]
        row = {
            "bench": "train",
            "device": device.type,
            "threads": torch.get_num_threads(),
            "dtype": dtype,
            "lengths": lengths,
            "layout": name,
            "seconds": statistics.median(seconds[name]),
            "tokens_per_s": work / statistics.median(seconds[name]),
            "tokens_read": int(read[name]),
            "gemm_gflops": statistics.median(rates[name]) / 1e9,
            "gemm_share": statistics.median(shares),
            "rows_over_this": statistics.median(ratios),
        }
        print(json.dumps(row), flush=True)


def overhead(device: torch.device, repeats: int) -> None:
    """FSDP at one rank against the module without it: 16 groups of 8 responses, the quickstart's mini-batch."""
    batch = rollouts(groups=16, samples=8, mixed=True)
    plain = Actor(maze_model(hidden=64, layers=2, heads=2).to(device), 1.0)
    trainer = make_trainer(maze_model(hidden=64, layers=2, heads=2), device)
    plain.model.set_attn_implementation(trainer.actor.model.config._attn_implementation)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)

    def bare() -> None:
        layout = pack(batch, shared=True).to(device)
        logp = plain(layout).logp
        full = logp.new_zeros(batch.tokens.numel()).index_put((layout.place,), logp).view(batch.tokens.shape)
        moved = batch.to(device)
        loss = (surrogate(Policy(full), moved).loss * moved.mask).sum() / moved.mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    # The two alternate, so that both are measured under the same load.
    pairs = [(median_s(bare, device, 1), median_s(lambda: trainer.learn(batch), device, 1)) for _ in range(3 * repeats)]
    bare_s, learn_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    row = {"bench": "train_overhead", "device": device.type, "bare_s": bare_s, "learn_s": learn_s}
    print(json.dumps({**row, "fsdp_over_plain": learn_s / bare_s}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--matrix", type=int, help="rows and columns of the square matrices of the matrix product")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    overhead(device, options.repeats)
    for dtype in ("float32", "bfloat16"):
        for lengths in ("equal", "mixed"):
            batch = rollouts(groups=options.groups, samples=options.samples, mixed=lengths == "mixed")
            rows(device, options.repeats, batch, dtype, lengths, matrix=options.matrix)


if __name__ == "__main__":
    main()
