"""No loss may have a gradient that is not finite: call `check(loss)` from its test."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlvr.objective.batch import Batch, Loss, Policy
from tests.loss.invariance import prepared
from tests.support.factories import make_batch, make_policy

ADVANTAGES = ([0.0] * 6, [2.5, -2.5, 0.0, 1e3, -1e3, 1e-6], [-1.0] * 6)


def check(loss: Loss, *, make: Callable[[Batch, Policy], tuple[Batch, Policy]] = lambda b, p: (b, p)) -> None:
    """Log ratios up to ±25 nats, groups without advantage, large advantages, one token in all; two precisions.

    make: adds what the loss needs beside the usual.
    """
    for dtype in (torch.float32, torch.bfloat16):
        for step in (0.0, 6.0, -6.0, 25.0, -25.0):
            for advantage in ADVANTAGES:
                for lengths in ((4, 1, 3, 2, 4, 2), (0, 0, 1, 0, 0, 0)):
                    batch = make_batch(lengths=lengths, dtype=dtype, advantage=torch.tensor(advantage, dtype=dtype))
                    policy = make_policy(batch, log_ratio=step)
                    finite(loss, *make(batch, policy))


def finite(loss: Loss, batch: Batch, policy: Policy) -> None:
    rows = torch.arange(len(batch.tokens))
    terms = loss(policy, prepared(loss, policy, batch, rows))
    total = torch.where(batch.mask if terms.loss.dim() == 2 else batch.mask.any(1), terms.loss, 0.0).sum()
    assert terms.loss.isfinite().all()
    leaves = [x for x in (policy.logp, policy.value, policy.log_z) if x is not None and x.requires_grad]
    for gradient in torch.autograd.grad(total, leaves):
        assert gradient.isfinite().all()
