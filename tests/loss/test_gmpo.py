"""GMPO: the geometric mean of clipped token ratios, by hand and against a loop."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from rlvr.loss.gmpo import gmpo
from rlvr.objective.batch import Policy
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy

GMPO = partial(gmpo, clip_low=0.4, clip_high=0.3)


def test_numbers_worked_by_hand() -> None:
    """Row 0, A = 2: (0.5, −0.9) → (0.3, −0.9), mean −0.3. Row 1, A = −1: (0.5, −0.9) → (0.5, −0.4), mean 0.05. A
    clipped token has no gradient, the other −A·ρ/2."""
    batch = make_batch(
        num_groups=1,
        num_samples=2,
        num_tokens=2,
        lengths=[2, 2],
        dtype=torch.float64,
        advantage=torch.tensor([2.0, -1.0], dtype=torch.float64),
    )
    policy = make_policy(batch, log_ratio=torch.tensor([[0.5, -0.9], [0.5, -0.9]]))
    terms = GMPO(policy, batch)
    rho = [math.exp(-0.3), math.exp(0.05)]
    assert terms.loss.tolist() == pytest.approx([-2 * rho[0], rho[1]])
    assert terms.metrics["clip_fraction"].tolist() == [0.5, 0.5]
    (slope,) = torch.autograd.grad(terms.loss.sum(), policy.logp)
    assert slope.flatten().tolist() == pytest.approx([0, -rho[0], rho[1] / 2, 0])


def test_agrees_with_a_plain_loop() -> None:
    batch = make_batch(num_groups=4, num_samples=4, dtype=torch.float64)
    policy = make_policy(batch)
    loss = GMPO(policy, batch).loss
    for b in range(16):
        A, n = batch.advantage[b].item(), int(batch.mask[b].sum())
        ratios = [policy.logp[b, t].item() - batch.logp_old[b, t].item() for t in range(n)]
        mean = sum(min(x, 0.3) if A > 0 else max(x, -0.4) for x in ratios) / n
        assert loss[b].item() == pytest.approx(-A * math.exp(mean), rel=1e-12)


def test_gradient_agrees_with_differences() -> None:
    batch = make_batch(dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda logp: GMPO(Policy(logp), batch).loss, make_policy(batch).logp)


def test_invariances_and_extremes() -> None:
    invariance.check(GMPO)
    extremes.check(GMPO)


def test_an_advantage_per_token_is_refused() -> None:
    batch = make_batch(advantage=torch.zeros(6, 4))
    with pytest.raises(ValueError, match="loss=gmpo takes one advantage per response"):
        GMPO(make_policy(batch), batch)
