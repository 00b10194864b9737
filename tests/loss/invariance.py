"""What must hold for every loss: call `check(loss)` from its test."""

from __future__ import annotations

import math
from dataclasses import fields

import torch
from torch import Tensor

from rlvr.batch import Batch, Loss, Policy
from rlvr.reduce import aggregate, counts
from tests.factories import make_batch, make_policy

LENGTHS = (4, 1, 3, 2, 4, 2)


def check(loss: Loss) -> None:
    """Padding, row order and the split into micro-batches change neither value, gradient nor metrics."""
    batch = make_batch(lengths=LENGTHS, dtype=torch.float64)
    policy = make_policy(batch)
    expected = reduced(loss, policy, batch, [torch.arange(6)])
    assert expected["gradient"].abs().max() > 0

    poisoned = make_batch(lengths=LENGTHS, dtype=torch.float64, padding=math.nan)
    same(reduced(loss, make_policy(poisoned, padding=math.inf), poisoned, [torch.arange(6)]), expected)
    order = torch.tensor([2, 0, 1, 5, 4, 3])  # within groups: groups stay whole
    same(reduced(loss, policy, batch, [order]), expected)
    same(reduced(loss, policy, batch, [torch.arange(3), torch.arange(3, 6)]), expected)
    same(reduced(loss, policy, batch, [torch.arange(3, 6), torch.arange(0), torch.arange(3)]), expected)


def reduced(loss: Loss, policy: Policy, batch: Batch, parts: list[Tensor]) -> dict[str, Tensor]:
    """Token means of loss and metrics and the gradient in logp, computed part by part and summed."""
    num_tokens, num_sequences = counts(batch.mask)
    total: dict[str, Tensor] = {}
    for rows in parts:
        part = take(batch, rows)
        terms = loss(Policy(**{f.name: pick(getattr(policy, f.name), rows) for f in fields(policy)}), part)
        for name, x in {"loss": terms.loss, **terms.metrics}.items():
            value = aggregate(
                x, part.mask, "token-mean", num_tokens=num_tokens, num_sequences=num_sequences, max_tokens=4
            )
            total[name] = total.get(name, torch.zeros_like(value)) + value
    (gradient,) = torch.autograd.grad(total["loss"], policy.logp)
    return {**total, "gradient": gradient}


def take(batch: Batch, rows: Tensor) -> Batch:
    per_row = [f.name for f in fields(batch) if not f.name.startswith("prompt")]
    prompts = {"prompt": batch.prompt, "prompt_mask": batch.prompt_mask}
    return Batch(**{name: pick(getattr(batch, name), rows) for name in per_row}, **prompts)


def pick(x: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if x is None else x[rows]


def same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-15, msg=lambda m, n=name: f"{n}: {m}")
