"""What tests/trainer/test_cuda.py runs on the fake CUDA, on one rank or two: `cuda_twins FILE`.

Configurations of the trainer learn on the GPU that is not there and, beside it, on the CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlvr.loss.lad_theoretical import lad_theoretical
from rlvr.objective import divergence
from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import attention, distributed
from rlvr.trainer.layout import Varlen
from rlvr.trainer.sharded_load import load_for_shards
from tests.support.fake_cuda import record
from tests.trainer.ranks import CASES, FLOWRL, STREAMS, data
from tests.trainer.tiny import batch, frozen_gathered, gradients, qwen2, surrogate, trainer, worst

WIDE = 32  # of hidden states: heads of 8, which the kernel for sequences of any lengths takes
OF_CASES = (
    "padded",
    "clipped, to the base policy",
    "first pass",
    "pacs",
    "adapters, to the base policy",
    "log Z, reference reset",
    "float16",
)
ON_TWO_RANKS = ("two streams", "value head", "bfloat16", "float16")
MORE: dict[str, dict[str, Any]] = {
    "bfloat16, prompts apart": {"dtype": "bfloat16", "shared_prompt": "never", "token_budget": 1},
    "bfloat16, prompts shared": {"dtype": "bfloat16", "shared_prompt": "always", "token_budget": 20},
    "bfloat16, recomputed, to the base policy": {
        "dtype": "bfloat16",
        "kl": 0.1,
        "base_kl": True,
        "activation_checkpointing": True,
    },
    "frozen copies in main memory": {"kl": 0.3, "reference_offload": True},
    "untied": {"tied": False, "dtype": "bfloat16"},
}
# Their losses look at what others do not.
WAITING: dict[str, dict[str, Any]] = {
    "pacs": {"loss": CASES["pacs"]["loss"]},
    "log Z": {"loss": FLOWRL},
    "of one token": {
        "loss": partial(lad_theoretical, divergence=divergence.js, eta=0.25),
        "lengths": (1, 1),
        "token_budget": 1,
    },
}
SHARDED: dict[str, dict[str, Any]] = {"log Z": {"loss": FLOWRL, "kl": 0.1}}
EPS = 1e-4  # of Adam: a gradient of 1e-7 of the largest is rounding alone, and must not move its weight by a whole step
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@dataclass
class Outcome:
    """Largest differences between a configuration on the GPU and on the CPU, and its kernels of attention.

    metrics: as a fraction of the metric where that is more than 1. gradient: of the last update, as a fraction of its
    largest number.
    """

    metrics: float
    logp: float
    gradient: float
    kernels: list[str] = field(default_factory=list[str])


def beside_its_twin(knobs: dict[str, Any], device: torch.device, base: Path | None = None) -> Outcome:
    """base: a directory whose weights every rank reads for itself; None: the whole model is at hand."""
    rest = {name: value for name, value in knobs.items() if name != "tied"}
    rows = data()
    if knobs.get("loss") is STREAMS:
        rows = replace(rows, kind=(rows.group == 1).long())

    def learned(device: torch.device, rest: dict[str, Any]) -> tuple[dict[str, float], Any, Any]:
        model = load_for_shards(base) if base else qwen2(tied=knobs.get("tied", True), hidden=WIDE)
        made = trainer(model, device=device, eps=EPS, **rest)
        record.kernels.clear()  # it has compared padded rows with packed ones
        metrics, gradient = made.learn(rows), {name: g.cpu() for name, g in gradients(made).items()}
        assert all(bool(weight.isfinite().all()) for _, weight in made.weights())
        return metrics, made.logp(data()).cpu(), gradient

    mine = learned(device, rest)
    kernels = sorted({f"{k.name} {k.dtype}" for k in record.kernels})
    theirs = learned(CPU, {name: value for name, value in rest.items() if name != "reference_offload"})
    assert mine[0].keys() == theirs[0].keys()
    return Outcome(
        max(abs(mine[0][name] - value) / max(1.0, abs(value)) for name, value in theirs[0].items()),
        float((mine[1] - theirs[1]).abs().max()),
        worst(mine[2], theirs[2]),
        kernels,
    )


def waits_of(
    micro_batches: int, device: torch.device, lengths: tuple[int, int] = (4, 3), **knobs: Any
) -> dict[str, int]:
    """Times that one optimiser step of so many micro-batches has the host wait, by operation and line."""
    made = trainer(qwen2(hidden=WIDE), device=device, **{"token_budget": 10, **knobs})
    rows = batch(num_groups=micro_batches, num_samples=2, lengths=[*lengths] * micro_batches, logp_ref=None)
    made.learn(rows)
    record.waits.clear()
    made.learn(rows)
    return {f"{w.where} {w.operation}": count for w, count in record.waits.most_common()}


def held_of_a_copy_in_main_memory(device: torch.device) -> dict[str, list[int]]:
    """Bytes of full weights of a frozen copy on the GPU, at each micro-batch's loss and once all is learned."""
    held = list[int]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        held.append(frozen_gathered(made))
        return surrogate(policy, batch)

    made = trainer(qwen2(), looks, device=device, kl=0.3, reference_offload=True, token_budget=1)
    made.learn(data())
    return {"learning": held, "after": [frozen_gathered(made)]}


def refuses_graded_rewards(device: torch.device) -> bool:
    """Whether a loss of right and wrong is told so of rewards that it takes for neither."""
    made = trainer(loss=WAITING["pacs"]["loss"], device=device)
    try:
        made.learn(replace(data(), reward=torch.full_like(data().reward, 0.5)))
    except ValueError as error:
        return "reward 0.5" in str(error)
    return False


def packs_with_a_kernel_that_errs(device: torch.device) -> bool:
    """Whether sequences are packed although the kernel for them gives each token its neighbour's result."""
    right = attention.varlen_attn
    try:
        attention.varlen_attn = lambda *given, **named: right(*given, **named).roll(1, 0)  # type: ignore[assignment]
        return trainer(qwen2(hidden=WIDE), device=device, dtype="bfloat16").packer.packing
    finally:
        attention.varlen_attn = right


def error_of_shared_keys(device: torch.device) -> list[float]:
    """Of the gradients of the keys and values of a prompt with 64 responses, as a fraction; bfloat16 beside float64."""
    prompt, responses, width = 4, 64, 32
    generator = torch.Generator().manual_seed(0)
    own = range(prompt, prompt + responses)
    key = [*range(prompt), *(place for response in own for place in (*range(prompt), response))]
    ends = torch.arange(responses + 1, dtype=torch.int32)
    shared = Varlen(
        query_ends=torch.cat([ends[:1], prompt + ends]),
        key_ends=torch.cat([ends[:1], prompt + ends * (prompt + 1)]),
        longest_query=prompt,
        longest_key=prompt + 1,
        key=torch.tensor(key),
    )
    draw = [torch.rand(1, 1, prompt + responses, width, generator=generator).bfloat16() for _ in range(3)]
    given = [x.to(device).requires_grad_() for x in draw]
    attention.attend(torch.nn.Identity(), *given, attention_mask=None, packed=shared.to(device))[0].sum().backward()
    exact = [x.double().requires_grad_() for x in draw]
    query, keys, values = (x[0].transpose(0, 1) for x in exact)
    attention.by_sequence(query, keys[shared.key], values[shared.key], shared, None).sum().backward()
    return [
        float((mine.grad.cpu().double() - right.grad)[..., :prompt, :].norm() / right.grad[..., :prompt, :].norm())
        for mine, right in zip(given[1:], exact[1:], strict=True)
        if mine.grad is not None and right.grad is not None
    ]


def settings() -> dict[str, bool | str]:
    """Of torch, for all that this process computes."""
    products = torch.backends.cuda.matmul
    return {
        "cudnn attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "sums in bfloat16": bool(products.allow_bf16_reduced_precision_reduction),
        "sums in float16": bool(products.allow_fp16_reduced_precision_reduction),
        "allocator": torch._C._accelerator_getAllocatorSettings(),
    }


def main(file: Path) -> None:
    rank, world, device = distributed.join_group()
    assert device.type == "cuda"
    result: dict[str, Any] = {"ranks": world, "twins": {}, "waits": {}}
    with tempfile.TemporaryDirectory() as directory:
        if rank == 0:
            qwen2(hidden=WIDE).save_pretrained(directory)
        base = Path(distributed.gather([directory])[0][0])
        chosen = OF_CASES if world == 1 else ON_TWO_RANKS
        for name, knobs in {**{each: CASES[each] for each in chosen}, **(MORE if world == 1 else {})}.items():
            result["twins"][name] = asdict(beside_its_twin(knobs, device))
        for name, knobs in SHARDED.items():
            result["twins"][f"{name}, read by rank"] = asdict(beside_its_twin(knobs, device, base))
        distributed.barrier()
    if world == 1:
        plain = {dtype: {"dtype": dtype, "kl": 0.1, "base_kl": True} for dtype in ("float32", "bfloat16", "float16")}
        for name, knobs in {**plain, **WAITING}.items():
            result["waits"][name] = {str(n): waits_of(n, device, **knobs) for n in (2, 4)}
        result["refuses graded rewards"] = refuses_graded_rewards(device)
        result["error of shared keys"] = error_of_shared_keys(device)
        result["packs with a kernel that errs"] = packs_with_a_kernel_that_errs(device)
    result["held of a copy in main memory"] = held_of_a_copy_in_main_memory(device)
    result["settings"] = settings()
    if rank == 0:
        file.write_text(json.dumps(result))
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
