"""The clipped-weight policy gradient: by hand, against a loop, and that every token keeps a gradient."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from rlvr.loss.cispo import cispo
from rlvr.objective.batch import Policy
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy, one_token_batch

CISPO = partial(cispo, clip_low=1.0, clip_high=0.5)

# (A, logp_old, r, weight, loss): bounds 0 and 1.5; the loss is −weight·A·logp, its slope −weight·A
BY_HAND = [
    (2.0, -1.0, 1.0, 1.0, 2.0),
    (2.0, -1.0, 2.0, 1.5, -3 * (math.log(2) - 1)),
    (-1.0, -1.0, 2.0, 1.5, 1.5 * (math.log(2) - 1)),
    (1.0, -1.0, 0.1, 0.1, -0.1 * (math.log(0.1) - 1)),  # no lower bound
]


def test_numbers_worked_by_hand() -> None:
    A, old, r, weight, expected = map(list, zip(*BY_HAND, strict=True))
    batch = one_token_batch(
        4, advantage=torch.tensor(A, dtype=torch.float64), logp_old=torch.tensor(old, dtype=torch.float64)[:, None]
    )
    policy = make_policy(batch, log_ratio=torch.tensor(r, dtype=torch.float64).log()[:, None])
    terms = CISPO(policy, batch)
    assert terms.loss.squeeze(1).tolist() == pytest.approx(expected)
    (slope,) = torch.autograd.grad(terms.loss.sum(), policy.logp)
    assert slope.squeeze(1).tolist() == pytest.approx([-w * a for w, a in zip(weight, A, strict=True)])
    assert terms.metrics["clip_fraction"].squeeze(1).tolist() == [0, 1, 1, 0]


def test_agrees_with_a_plain_loop() -> None:
    batch = make_batch(num_groups=4, num_samples=4, num_tokens=6, dtype=torch.float64)
    policy = make_policy(batch)
    loss = cispo(policy, batch, clip_low=0.1, clip_high=0.2).loss
    for b in range(16):
        for t in range(int(batch.mask[b].sum())):
            r = math.exp(policy.logp[b, t].item() - batch.logp_old[b, t].item())
            expected = -min(max(r, 0.9), 1.2) * batch.advantage[b].item() * policy.logp[b, t].item()
            assert loss[b, t].item() == pytest.approx(expected, rel=1e-12)


def test_tokens_that_the_surrogate_drops_are_learned_from() -> None:
    """A > 0 and r above the bound: the clipped surrogate has gradient 0, this one −bound·A."""
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=1, lengths=[1, 1], advantage=torch.tensor([1.0, -1.0]))
    policy = make_policy(batch, log_ratio=torch.tensor([[3.0], [-3.0]]))
    (slope,) = torch.autograd.grad(cispo(policy, batch, clip_low=0.2, clip_high=0.2).loss.sum(), policy.logp)
    assert slope.squeeze(1).tolist() == pytest.approx([-1.2, 0.8])


def test_unclipped_it_is_the_gradient_of_the_expected_reward_off_policy() -> None:
    """Samples of π_old, weighed by π/π_old: E_old[r·R·∇log π] = ∇ Σ π R."""
    logits = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64).log_softmax(0)
    R = torch.tensor([1.0, 0.0, 0.3, -2.0], dtype=torch.float64)
    logp = logits.log_softmax(0)
    (true,) = torch.autograd.grad(-(logp.exp() * R).sum(), logits, retain_graph=True)
    batch = one_token_batch(4, advantage=R, logp_old=old[:, None])
    loss = cispo(Policy(logp[:, None]), batch, clip_low=1.0, clip_high=1e9).loss.squeeze(1)
    (got,) = torch.autograd.grad((old.exp() * loss).sum(), logits)
    torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-14)


def test_invariances() -> None:
    invariance.check(CISPO)


def test_gradient_is_finite_at_the_extremes() -> None:
    extremes.check(CISPO)


@pytest.mark.parametrize("knobs", [{"clip_low": 1.5, "clip_high": 1.0}, {"clip_low": 0.5, "clip_high": -0.1}])
def test_impossible_bounds_are_refused(knobs: dict[str, float]) -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="must be 0 to 1 and loss.clip_high"):
        cispo(make_policy(batch), batch, **knobs)
