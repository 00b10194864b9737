"""EntAdv: the shaped advantage by hand; what it never does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.loss.entadv import entadv
from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Policy
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy

CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
ENTADV = partial(entadv, alpha=0.4, kappa=2.0, **CLIP)


def test_shaping_by_hand() -> None:
    """α = 0.4, κ = 2. A = 1, H = 1: +0.4; A = 1, H = 2: +½, not 0.8; A = −1, H = 1: −0.6; A = −1, H = 9: −½; 0: 0."""
    A = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0], dtype=torch.float64)
    batch = make_batch(num_groups=1, num_samples=5, num_tokens=1, lengths=[1] * 5, dtype=torch.float64, advantage=A)
    H = torch.tensor([1.0, 2.0, 1.0, 9.0, 3.0], dtype=torch.float64)[:, None].requires_grad_()
    policy = make_policy(batch, log_ratio=0.0, entropy=H)
    terms = ENTADV(policy, batch)
    assert terms.metrics["shaping"].flatten().tolist() == pytest.approx([0.4, 0.5, 0.4, 0.5, 0.0])
    (gradient,) = torch.autograd.grad(terms.loss.sum(), policy.logp, retain_graph=True)
    assert gradient.flatten().tolist() == pytest.approx([-1.4, -1.5, 0.6, 0.5, 0.0])  # −A·r on policy
    assert torch.autograd.grad(terms.loss.sum(), H, allow_unused=True)[0] is None
    assert torch.equal(batch.advantage, A)  # the batch is as it was


def test_agrees_with_a_plain_loop() -> None:
    batch = make_batch(num_groups=4, dtype=torch.float64)
    policy = make_policy(batch)
    assert policy.entropy is not None
    loss = ENTADV(policy, batch).loss.detach()
    for b in range(12):
        a = float(batch.advantage[b])
        for t in range(int(batch.mask[b].sum())):
            shaped = a + min(0.4 * float(policy.entropy[b, t]), abs(a) / 2)
            r = float((policy.logp.detach()[b, t] - batch.logp_old[b, t]).exp())
            expected = max(-shaped * r, -shaped * min(max(r, 0.8), 1.28))
            assert float(loss[b, t]) == pytest.approx(expected, rel=1e-12)


def test_without_alpha_it_is_the_surrogate() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    assert torch.equal(entadv(policy, batch, alpha=0.0, kappa=2.0, **CLIP).loss, grpo(policy, batch, **CLIP).loss)


def test_no_advantage_changes_its_sign() -> None:
    batch = make_batch(num_groups=20, num_samples=20)
    policy = make_policy(batch, entropy=torch.full((400, 4), 50.0))
    shaped = batch.advantage[:, None] + ENTADV(policy, batch).metrics["shaping"]
    assert (shaped.sign() == batch.advantage.sign()[:, None])[batch.mask].all()


def test_repeating_it_does_not_compound() -> None:
    batch = make_batch()
    policy = make_policy(batch)
    first, second = (ENTADV(policy, batch).loss for _ in range(2))
    assert torch.equal(first, second)


def test_advantage_per_token_is_shaped_per_token() -> None:
    batch = make_batch(dtype=torch.float64)
    per_token = replace(batch, advantage=batch.advantage[:, None].expand(-1, 4))
    policy = make_policy(batch)
    assert torch.equal(ENTADV(policy, batch).loss, ENTADV(policy, per_token).loss)


def test_gradient_agrees_with_differences() -> None:
    batch = make_batch(dtype=torch.float64)
    policy = make_policy(batch)
    assert torch.autograd.gradcheck(lambda p: ENTADV(Policy(p, entropy=policy.entropy), batch).loss, policy.logp)


def test_invariances() -> None:
    invariance.check(ENTADV)


def test_gradients_are_finite() -> None:
    extremes.check(ENTADV)


@pytest.mark.parametrize("knobs", [{"alpha": -0.1, "kappa": 2.0}, {"alpha": 0.4, "kappa": 1.0}])
def test_bad_knobs_are_errors(knobs: dict[str, float]) -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match=r"for example 0\.4 and 2"):
        entadv(make_policy(batch), batch, **knobs, **CLIP)
