"""Configurations of the trainer learn on a GPU and on the CPU, and their results are compared.

tests/trainer/test_cuda.py starts this module on the fake CUDA, with one or two ranks: `cuda_twins FILE` writes the
differences to FILE as JSON. tests/trainer/test_gpu.py calls what needs no fake on a real GPU, too.
"""

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
from rlvr.trainer.packer import Packer
from rlvr.trainer.sharded_load import load_for_shards
from tests.support.fake_cuda import record
from tests.trainer.ranks import CASES, FLOWRL, STREAMS, data
from tests.trainer.tiny import batch, by_sequence, frozen_gathered, gradients, make_trainer, qwen2, surrogate, worst

WIDE = 32  # hidden size: heads have size 8, which the kernel for sequences of any lengths supports
# Further layouts and precisions: tests/trainer/test_gpu.py.
ON_ONE_RANK = ("padded", "clipped, to the base policy", "first pass", "pacs", "adapters, to the base policy")
ON_ONE_RANK += ("log Z, reference reset", "bfloat16", "float16")
ON_TWO_RANKS = ("two streams", "value head", "bfloat16", "float16")
# Cases for the number of times the host waits: their losses read tensors that other losses do not.
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
EPS = 1e-4  # of Adam: a gradient of 1e-7 of the largest is only rounding, and must not move its weight by a full step
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@dataclass
class Outcome:
    """Largest differences between a configuration on the GPU and on the CPU, and how its attention was computed there.

    metrics: as a fraction of the metric where that is more than 1. gradient: of the last update, as a fraction of its
    largest number. skipped: updates whose gradient overflowed on the GPU or on the CPU. kernels: of attention; [] on a
    real GPU, which does not record them."""

    metrics: float
    logp: float
    gradient: float
    skipped: float
    kernels: list[str] = field(default_factory=list[str])
    packed: bool = False
    varlen: bool = False


def beside_its_twin(knobs: dict[str, Any], device: torch.device, base: Path | None = None) -> Outcome:
    """Train on `device` and on the CPU, and compare. base: a directory from which each rank reads its part of the
    weights; None: every rank has the whole model."""
    options = {name: value for name, value in knobs.items() if name != "tied"}
    rows = data()
    if knobs.get("loss") is STREAMS:
        rows = replace(rows, kind=(rows.group == 1).long())

    def learned(device: torch.device, options: dict[str, Any]) -> tuple[dict[str, float], Any, Any, Packer]:
        model = load_for_shards(base) if base else qwen2(tied=knobs.get("tied", True), hidden=WIDE)
        trainer = make_trainer(model, device=device, eps=EPS, **options)
        record.kernels.clear()  # of the comparison between packed and padded rows
        metrics, gradient = trainer.learn(rows), {name: g.cpu() for name, g in gradients(trainer).items()}
        assert all(bool(weight.isfinite().all()) for _, weight in trainer.weights())
        return metrics, trainer.logp(data()).cpu(), gradient, trainer.packer

    on_gpu = learned(device, options)
    kernels = sorted({f"{k.name} {k.dtype}" for k in record.kernels})
    on_cpu = learned(CPU, {name: value for name, value in options.items() if name != "reference_offload"})
    assert on_gpu[0].keys() == on_cpu[0].keys()
    return Outcome(
        max(abs(on_gpu[0][name] - value) / max(1.0, abs(value)) for name, value in on_cpu[0].items()),
        float((on_gpu[1] - on_cpu[1]).abs().max()),
        worst(on_gpu[2], on_cpu[2]),
        max(metrics.get("optim/skipped", 0.0) for metrics in (on_gpu[0], on_cpu[0])),
        kernels,
        on_gpu[3].packing,
        on_gpu[3].varlen,
    )


def waits_of(
    micro_batches: int, device: torch.device, lengths: tuple[int, int] = (4, 3), **knobs: Any
) -> dict[str, int]:
    """Number of times that the host waits in an optimiser step with `micro_batches`, by operation and line."""
    trainer = make_trainer(qwen2(hidden=WIDE), device=device, **{"token_budget": 10, **knobs})
    rows = batch(num_groups=micro_batches, num_samples=2, lengths=[*lengths] * micro_batches, logp_ref=None)
    trainer.learn(rows)
    record.waits.clear()
    trainer.learn(rows)
    return {f"{w.where} {w.operation}": count for w, count in record.waits.most_common()}


def held_of_a_copy_in_main_memory(device: torch.device) -> dict[str, list[int]]:
    """Bytes of full weights of a frozen copy on the GPU, at the loss of each micro-batch and after the step."""
    held_bytes = list[int]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        held_bytes.append(frozen_gathered(trainer))
        return surrogate(policy, batch)

    trainer = make_trainer(qwen2(), looks, device=device, kl=0.3, reference_offload=True, token_budget=1)
    trainer.learn(data())
    return {"learning": held_bytes, "after": [frozen_gathered(trainer)]}


def packs_with_a_kernel_that_errs(device: torch.device) -> bool:
    """Whether sequences are packed although the attention kernel returns each token's neighbour's result."""
    right = attention.varlen_attn
    try:
        attention.varlen_attn = lambda *inputs, **named: right(*inputs, **named).roll(1, 0)  # type: ignore[assignment]
        return make_trainer(qwen2(hidden=WIDE), device=device, dtype="bfloat16").packer.packing
    finally:
        attention.varlen_attn = right


def error_of_shared_keys(device: torch.device) -> list[float]:
    """Relative error of the gradients of keys and values of a prompt with 64 responses: bfloat16 against float64."""
    prompt, responses, width = 4, 64, 32
    generator = torch.Generator().manual_seed(0)
    responses_places = range(prompt, prompt + responses)
    key = [*range(prompt), *(place for response in responses_places for place in (*range(prompt), response))]
    ends = torch.arange(responses + 1, dtype=torch.int32)
    shared = Varlen(
        query_ends=torch.cat([ends[:1], prompt + ends]),
        key_ends=torch.cat([ends[:1], prompt + ends * (prompt + 1)]),
        longest_query=prompt,
        longest_key=prompt + 1,
        key=torch.tensor(key),
    )
    draw = [torch.rand(1, 1, prompt + responses, width, generator=generator).bfloat16() for _ in range(3)]
    inputs = [x.to(device).requires_grad_() for x in draw]
    attention.attend(torch.nn.Identity(), *inputs, attention_mask=None, packed=shared.to(device))[0].sum().backward()
    exact = [x.double().requires_grad_() for x in draw]
    query, keys, values = (x[0].transpose(0, 1) for x in exact)
    ends = shared.query_ends, shared.key_ends
    by_sequence(query, keys[shared.key], values[shared.key], *ends, scale=None).sum().backward()
    return [
        float((on_gpu.grad.cpu().double() - right.grad)[..., :prompt, :].norm() / right.grad[..., :prompt, :].norm())
        for on_gpu, right in zip(inputs[1:], exact[1:], strict=True)
        if on_gpu.grad is not None and right.grad is not None
    ]


def settings() -> dict[str, bool | str]:
    """Settings of torch in this process."""
    products = torch.backends.cuda.matmul
    return {
        "cudnn attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "sums in bfloat16": bool(products.allow_bf16_reduced_precision_reduction),
        "sums in float16": bool(products.allow_fp16_reduced_precision_reduction),
        "float32 as TF32": bool(products.allow_tf32),
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
        cases = {name: CASES[name] for name in (ON_ONE_RANK if world == 1 else ON_TWO_RANKS)}
        for name, knobs in cases.items():
            result["twins"][name] = asdict(beside_its_twin(knobs, device))
        for name, knobs in SHARDED.items():
            result["twins"][f"{name}, read by rank"] = asdict(beside_its_twin(knobs, device, base))
        distributed.barrier()
    if world == 1:
        plain = {dtype: {"dtype": dtype, "kl": 0.1, "base_kl": True} for dtype in ("float32", "bfloat16", "float16")}
        for name, knobs in {**plain, **WAITING}.items():
            result["waits"][name] = {str(n): waits_of(n, device, **knobs) for n in (2, 4)}
    result["held of a copy in main memory"] = held_of_a_copy_in_main_memory(device)
    result["settings"] = settings()
    if rank == 0:
        file.write_text(json.dumps(result))
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
