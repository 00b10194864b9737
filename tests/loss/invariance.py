"""What must hold for every loss: call `check(loss)` from its test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Loss, Policy, first_pass_of
from rlvr.objective.reduce import aggregate, counts
from tests.support.factories import make_batch, make_policy

LENGTHS = (4, 1, 3, 2, 4, 2)


def check(loss: Loss, *, make: Callable[..., tuple[Batch, Policy]] | None = None) -> None:
    """Padding, row order and the split into micro-batches change neither value, gradient nor metrics.

    make: `(padding=…)` → batch and policy with what the loss needs beside the usual; default `usual`.
    """
    make = make or usual
    batch, policy = make(padding=0.0)
    expected = reduced(loss, policy, batch, [torch.arange(6)])
    assert expected["gradient"].abs().max() > 0

    poisoned, other = make(padding=math.nan)
    same(reduced(loss, other, poisoned, [torch.arange(6)]), expected)
    order = torch.tensor([2, 0, 1, 5, 4, 3])  # within groups: groups stay whole
    same(reduced(loss, policy, batch, [order]), expected)
    same(reduced(loss, policy, batch, [torch.arange(3), torch.arange(3, 6)]), expected)
    same(reduced(loss, policy, batch, [torch.arange(3, 6), torch.arange(0), torch.arange(3)]), expected)


def usual(*, padding: float) -> tuple[Batch, Policy]:
    batch = make_batch(lengths=LENGTHS, dtype=torch.float64, padding=padding)
    return batch, make_policy(batch, padding=math.inf if padding else 0.0)


def prepared(loss: Loss, policy: Policy, batch: Batch, order: Tensor) -> Batch:
    """The batch with what the loss's first pass finds in all of it, where it sees the rows in this order."""
    before = first_pass_of(loss)
    if before is None:
        return batch
    with torch.no_grad():
        statistics = before(rows_of(policy, order), take(batch, order))
    return replace(batch, extra=torch.zeros_like(statistics).index_copy(0, order, statistics))


def rows_of(policy: Policy, rows: Tensor) -> Policy:
    return Policy(**{f.name: pick(getattr(policy, f.name), rows) for f in fields(policy)})


def reduced(loss: Loss, policy: Policy, batch: Batch, parts: list[Tensor]) -> dict[str, Tensor]:
    """Token means of loss and metrics and the gradient in logp, computed part by part and summed."""
    num_tokens, num_sequences = counts(batch.mask)
    total: dict[str, Tensor] = {}
    batch = prepared(loss, policy, batch, parts[0] if len(parts) == 1 else torch.arange(len(batch.tokens)))
    for rows in parts:
        part = take(batch, rows)
        terms = loss(rows_of(policy, rows), part)
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
