import math
from functools import partial

import pytest
import torch

from rlvr.loss.sapo import sapo
from tests.loss.by_hand import gradient
from tests.support.factories import make_batch, make_policy

SAPO = partial(sapo, tau_pos=1.0, tau_neg=2.0)


def test_on_policy_the_gradient_is_minus_a_and_the_value_minus_two_a_over_tau() -> None:
    """σ(0) = ½: value −A·(4/τ)·½, gradient −A·4·½·½."""
    batch = make_batch(dtype=torch.float64)
    policy = make_policy(batch, log_ratio=0.0)
    terms = SAPO(policy, batch)
    tau = torch.where(batch.advantage > 0, 1.0, 2.0)
    torch.testing.assert_close(gradient(terms, policy), -batch.token_advantage)
    torch.testing.assert_close(terms.loss, -2 * batch.token_advantage / tau[:, None])


def test_agrees_with_a_plain_loop_far_from_the_old_policy_too() -> None:
    """r = e^4 = 54.6: 1 − σ(τ(r − 1)) is 5e-24, which a sigmoid near 1 does not have."""
    batch = make_batch(num_groups=4, num_samples=4, dtype=torch.float64)
    policy = make_policy(batch, log_ratio=torch.linspace(-4, 4, 64).view(16, 4).double())
    terms = SAPO(policy, batch)
    slope = gradient(terms, policy)
    for b, t in batch.mask.nonzero().tolist():
        A, r = batch.advantage[b].item(), math.exp(policy.logp[b, t].item() - batch.logp_old[b, t].item())
        tau = 1.0 if A > 0 else 2.0
        sigma, rest = (1 / (1 + math.exp(sign * tau * (r - 1))) for sign in (-1, 1))
        assert terms.loss[b, t].item() == pytest.approx(-A * 4 / tau * sigma, rel=1e-12)
        assert slope[b, t].item() == pytest.approx(-A * 4 * sigma * rest * r, rel=1e-9)
