import math
from functools import partial

import pytest
import torch

from rlvr.loss.cispo import cispo
from rlvr.objective.batch import Policy
from tests.loss.by_hand import arms, check_tokens, gradient
from tests.support.factories import one_token_batch

# (A, r, weight): bounds 0 and 1.5, the lower of which is none. The loss is −weight·A·logp, its slope −weight·A: a token
# that the clipped surrogate drops keeps one.
BY_HAND = [(2.0, 1.0, 1.0), (2.0, 2.0, 1.5), (-1.0, 2.0, 1.5), (1.0, 0.1, 0.1)]


def test_numbers_worked_by_hand() -> None:
    A, r, weight = zip(*BY_HAND, strict=True)
    batch, policy = arms(A, [math.log(x) for x in r])
    terms = cispo(policy, batch, clip_low=1.0, clip_high=0.5)
    slope = [-w * a for w, a in zip(weight, A, strict=True)]
    logp = policy.logp.flatten().tolist()
    assert terms.loss.flatten().tolist() == pytest.approx([s * x for s, x in zip(slope, logp, strict=True)])
    assert gradient(terms, policy).flatten().tolist() == pytest.approx(slope)
    assert terms.metrics["clip_fraction"].flatten().tolist() == [0, 1, 1, 0]


def test_agrees_with_a_plain_loop() -> None:
    check_tokens(
        partial(cispo, clip_low=0.1, clip_high=0.2),
        lambda A, logp, old, _: -min(max(math.exp(logp - old), 0.9), 1.2) * A * logp,
    )


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
