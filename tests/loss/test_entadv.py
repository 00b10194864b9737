import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.loss.entadv import entadv
from rlvr.loss.grpo import grpo
from tests.loss.by_hand import arms, check_tokens, column, gradient
from tests.support.factories import make_batch, make_policy

CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
ENTADV = partial(entadv, alpha=0.4, kappa=2.0, **CLIP)


def test_shaping_by_hand() -> None:
    """α = 0.4, κ = 2. A = 1, H = 1: +0.4; A = 1, H = 2: +½, not 0.8; A = −1, H = 1: −0.6; A = −1, H = 9: −½; 0: 0."""
    A, H = [1.0, 1.0, -1.0, -1.0, 0.0], column([1.0, 2.0, 1.0, 9.0, 3.0]).requires_grad_()
    batch, policy = arms(A, entropy=H)
    terms = ENTADV(policy, batch)
    assert terms.metrics["shaping"].flatten().tolist() == pytest.approx([0.4, 0.5, 0.4, 0.5, 0.0])
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([-1.4, -1.5, 0.6, 0.5, 0.0])  # −A·r on policy
    assert torch.autograd.grad(terms.loss.sum(), H, allow_unused=True)[0] is None
    assert batch.advantage.tolist() == A  # the batch is as it was


def test_agrees_with_a_plain_loop() -> None:
    def expected(A: float, logp: float, old: float, H: float) -> float:
        shaped, r = A + min(0.4 * H, abs(A) / 2), math.exp(logp - old)
        return max(-shaped * r, -shaped * min(max(r, 0.8), 1.28))

    check_tokens(ENTADV, expected)


def test_without_alpha_it_is_the_surrogate_and_an_advantage_per_token_is_shaped_per_token() -> None:
    batch = make_batch(dtype=torch.float64)
    policy, per_token = make_policy(batch), replace(batch, advantage=batch.advantage[:, None].expand(-1, 4))
    assert torch.equal(entadv(policy, batch, alpha=0.0, kappa=2.0, **CLIP).loss, grpo(policy, batch, **CLIP).loss)
    assert torch.equal(ENTADV(policy, batch).loss, ENTADV(policy, per_token).loss)


def test_no_advantage_changes_its_sign() -> None:
    batch = make_batch(num_groups=20, num_samples=20)
    policy = make_policy(batch, entropy=torch.full((400, 4), 50.0))
    shaped = batch.advantage[:, None] + ENTADV(policy, batch).metrics["shaping"]
    assert (shaped.sign() == batch.advantage.sign()[:, None])[batch.mask].all()
