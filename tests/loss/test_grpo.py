"""The clipped surrogate: by hand, against a float64 loop, and where its gradient stops."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Policy, Terms
from tests.loss import invariance
from tests.support.factories import make_batch, make_policy, one_token_batch

# (A, r, loss, d loss/dℓ, clipped): ε 0.2 below, 0.28 above; d loss/dℓ is −A·r or 0
BY_HAND = [
    (2.0, 1.0, -2.0, -2.0, 0.0),
    (2.0, 1.5, -2.56, 0.0, 1.0),  # −2·1.28 > −2·1.5
    (2.0, 0.5, -1.0, -1.0, 0.0),  # −2·0.8 < −2·0.5: pessimism keeps the gradient
    (-2.0, 1.5, 3.0, 3.0, 0.0),
    (-2.0, 0.5, 1.6, 0.0, 1.0),  # 2·0.8 > 2·0.5
    (0.0, 1.5, 0.0, 0.0, 0.0),
]


def terms_of(A: list[float], r: list[float], dual_clip: float | None = None) -> tuple[Terms, Policy]:
    B = len(A)
    batch = one_token_batch(B, advantage=torch.tensor(A, dtype=torch.float64))
    policy = make_policy(batch, log_ratio=torch.tensor(r, dtype=torch.float64).log()[:, None])
    return grpo(policy, batch, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip), policy


def test_numbers_worked_by_hand() -> None:
    A, r, loss, slope, clipped = map(list, zip(*BY_HAND, strict=True))
    terms, policy = terms_of(A, r)
    terms.loss.sum().backward()
    assert policy.logp.grad is not None
    assert terms.loss.squeeze(1).tolist() == pytest.approx(loss)
    assert policy.logp.grad.squeeze(1).tolist() == pytest.approx(slope)
    assert terms.metrics["clip_fraction"].squeeze(1).tolist() == clipped
    assert "dual_clip_fraction" not in terms.metrics


def test_dual_clip_bounds_the_loss_of_bad_answers_only() -> None:
    """c = 3: A = −2, r = 5: 10 becomes 6 without gradient; A = −2, r = 2: 4 stays; A = 2, r = 0.1: −0.2 stays."""
    terms, policy = terms_of([-2.0, -2.0, 2.0], [5.0, 2.0, 0.1], dual_clip=3.0)
    terms.loss.sum().backward()
    assert policy.logp.grad is not None
    assert terms.loss.squeeze(1).tolist() == pytest.approx([6, 4, -0.2])
    assert policy.logp.grad.squeeze(1).tolist() == pytest.approx([0, 4, -0.2])
    assert terms.metrics["dual_clip_fraction"].squeeze(1).tolist() == [1, 0, 0]
    assert terms.metrics["clip_fraction"].squeeze(1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_agrees_with_a_plain_loop(dual_clip: float | None) -> None:
    batch = make_batch(num_groups=4, num_samples=4, num_tokens=6, dtype=torch.float64)
    policy = make_policy(batch)
    terms = grpo(policy, batch, clip_low=0.1, clip_high=0.3, dual_clip=dual_clip)
    for b in range(16):
        A = batch.advantage[b].item()
        for t in range(int(batch.mask[b].sum())):
            r = math.exp(policy.logp[b, t].item() - batch.logp_old[b, t].item())
            expected = -min(A * r, A * min(max(r, 0.9), 1.3))
            if dual_clip is not None and A < 0:
                expected = min(expected, -A * dual_clip)
            assert terms.loss[b, t].item() == pytest.approx(expected, rel=1e-12)
            assert terms.metrics["clip_fraction"][b, t].item() == ((A > 0 and r > 1.3) or (A < 0 and r < 0.9))


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    """r = 1: both branches agree and the gradient is −A, so the first update of a rollout is plain REINFORCE."""
    batch = make_batch()
    policy = make_policy(batch, log_ratio=0.0)
    grpo(policy, batch, clip_low=0.2, clip_high=0.2, dual_clip=None).loss.sum().backward()
    torch.testing.assert_close(policy.logp.grad, -batch.advantage[:, None] * batch.mask)


def test_gradient_agrees_with_differences() -> None:
    batch = make_batch(dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda logp: grpo(Policy(logp), batch, clip_low=0.2, clip_high=0.28, dual_clip=None).loss,
        make_policy(batch).logp,
    )


def test_log_ratio_is_clamped_at_20_nats_with_no_gradient_beyond() -> None:
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=1, lengths=[1, 1], advantage=torch.tensor([-1.0, 1.0]))
    policy = make_policy(batch, log_ratio=torch.tensor([[30.0], [-30.0]]))
    terms = grpo(policy, batch, clip_low=0.2, clip_high=0.2, dual_clip=None)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([[math.exp(20)], [-math.exp(-20)]]))
    terms.loss.sum().backward()
    assert policy.logp.grad is not None
    assert policy.logp.grad.tolist() == [[0], [0]]


@pytest.mark.parametrize("dual_clip", [None, 1.2])
def test_invariances(dual_clip: float | None) -> None:
    invariance.check(partial(grpo, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip))


@pytest.mark.parametrize("dual_clip", [1.0, 0.5, -3.0])
def test_dual_clip_must_exceed_one(dual_clip: float) -> None:
    with pytest.raises(ValueError, match="must be more than 1"):
        terms_of([1.0], [1.0], dual_clip=dual_clip)
