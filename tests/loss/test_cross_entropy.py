"""Exact maximum likelihood: by hand, as a loop, and with the population weight 1/p."""

from __future__ import annotations

import pytest
import torch

from rlvr.loss.cross_entropy import cross_entropy
from rlvr.metrics import weight_ml
from rlvr.objective.batch import Policy
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy


def test_numbers_worked_by_hand() -> None:
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=2, lengths=[2, 1], logp_old=torch.zeros(2, 2))
    policy = make_policy(batch, log_ratio=torch.tensor([[-0.5, -1.0], [-3.0, -7.0]]))
    terms = cross_entropy(policy, batch)
    assert terms.loss.tolist() == [[0.5, 1.0], [3.0, 0.0]]
    terms.loss.sum().backward()
    assert policy.logp.grad is not None
    assert policy.logp.grad.tolist() == [[-1.0, -1.0], [-1.0, 0.0]]


def test_agrees_with_a_plain_loop() -> None:
    batch = make_batch(num_groups=3, num_samples=4, dtype=torch.float64)
    policy = make_policy(batch)
    loss = cross_entropy(policy, batch).loss
    for b in range(12):
        for t in range(4):
            assert loss[b, t].item() == (-policy.logp[b, t].item() if batch.mask[b, t] else 0.0)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.99])
def test_expected_gradient_is_one_over_p_times_that_of_the_pass_rate(p: float) -> None:
    logits = torch.tensor([p, 1 - p], dtype=torch.float64).log().requires_grad_()
    logp = logits.log_softmax(0)
    batch = make_batch(num_groups=1, num_samples=1, num_tokens=1, lengths=[1], dtype=torch.float64)
    (slope,) = torch.autograd.grad(-cross_entropy(Policy(logp[:1, None]), batch).loss.sum(), logits, retain_graph=True)
    (of_p,) = torch.autograd.grad(logp[0].exp(), logits)
    torch.testing.assert_close(slope, float(weight_ml(p)) * of_p, rtol=1e-9, atol=0)


def test_gradient_agrees_with_differences() -> None:
    batch = make_batch(dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda logp: cross_entropy(Policy(logp), batch).loss, make_policy(batch).logp)


def test_invariances() -> None:
    invariance.check(cross_entropy)


def test_gradient_is_finite_at_the_extremes() -> None:
    extremes.check(cross_entropy)
