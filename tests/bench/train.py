"""Training speed on the 3-million-parameter maze model: tokens per second of forward, backward and AdamW.

32 groups of 16 responses, prompts of about 70 tokens, responses of 32 (equal lengths) or of 4 to 32 (mixed). Counted
are the tokens of separate sequences (prompt and response, without padding) for every layout, so that layouts can be
compared: it is work done, not tokens read. Linear layers: floating point operations of the linear layers on the tokens
read, over the time and the rate of a square matrix product in the same precision, measured just before: attention,
norms and the optimiser count as loss.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import distributed
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.knobs import Place
from tests.bench.row import Row, row
from tests.trainer.tiny import make_knobs

VOCABULARY = 32


def maze_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
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
    distributed.join_group()
    place = Place(device, pad_token_id=0, max_tokens=max_tokens)
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
    response tokens."""
    layers = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    return 6 * (layers * num_read + model.lm_head.weight.numel() * int(batch.mask.sum()))


LAYOUTS: dict[str, dict[str, Any]] = {"shared": {}, "packed": {"shared_prompt": "never"}, "rows": {"packing": False}}


def measured(batch: Batch, dtype: str, repeats: int, matrix: int | None) -> tuple[dict[str, float], float, float]:
    """(seconds of each layout, share of the rate of matrix products that packed sequences reach, that rate).

    Layouts alternate, each after a matrix product, so that a busy machine slows all of them alike."""
    device = torch.device("cpu")
    trainers = {name: make_trainer(maze_model(), device, dtype=dtype, **knobs) for name, knobs in LAYOUTS.items()}
    read = {name: trainer.learn(batch)["tokens/train"] for name, trainer in trainers.items()}
    rates, seconds = ({name: list[float]() for name in LAYOUTS} for _ in range(2))
    for _ in range(repeats):
        for name, trainer in trainers.items():
            rates[name].append(gemm_rate(getattr(torch, dtype), device, matrix))
            seconds[name].append(median_s(lambda trainer=trainer: trainer.learn(batch), device, 1, warm=False))
    floats = linear_flops(maze_model(), batch, read["packed"])
    shares = [floats / s / rate for s, rate in zip(seconds["packed"], rates["packed"], strict=True)]
    medians = {name: statistics.median(of_layout) for name, of_layout in seconds.items()}
    return medians, statistics.median(shares), statistics.median(rates["packed"])


def rows(*, quick: bool) -> Iterator[Row]:
    groups, samples, repeats, matrix = (2, 4, 1, 64) if quick else (32, 16, 3, None)
    for dtype in ("float32", "bfloat16"):
        linear: list[tuple[float, float]] = []
        for lengths in ("equal", "mixed"):
            batch = rollouts(groups=groups, samples=samples, mixed=lengths == "mixed")
            tokens = int(batch.mask.sum()) + int(batch.prompt_mask.sum(1)[batch.group].sum())
            seconds, *of_linear = measured(batch, dtype, repeats, matrix)
            linear.append((of_linear[0], of_linear[1] / 1e9))
            ours, padded = (tokens / seconds[layout] for layout in ("shared", "rows"))
            yield row(f"training, {lengths} lengths, {dtype}", ours, "tokens/s", "a padded row per response", padded)
        share, gflops = linear[0]
        name, target = f"training, linear layers, {dtype}", 0.55 if dtype == "float32" else None
        yield row(name, share * gflops, "GFLOP/s", "square matrix product", gflops, target=target)
