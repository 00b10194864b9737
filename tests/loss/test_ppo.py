"""The surrogate with a value loss: by hand, against a loop, and where the value's gradient stops."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from rlvr.loss.grpo import grpo
from rlvr.loss.ppo import ppo
from rlvr.objective.batch import Batch, Policy
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy, one_token_batch

KNOBS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
PPO = partial(ppo, **KNOBS, value_coefficient=0.5, value_clip=0.2)


def with_values(batch: Batch, policy: Policy, *, padding: float = 0.0) -> tuple[Batch, Policy]:
    """Values, old values and returns in (−1, 1) that depend on the row and place alone."""
    B, T = batch.tokens.shape
    wave = torch.arange(B * T, dtype=torch.float64).view(B, T)

    def fill(factor: float) -> Tensor:
        return torch.where(batch.mask, (wave * factor).sin(), padding).to(batch.logp_old.dtype)

    batch = Batch(**{**vars(batch), "value_old": fill(1.0), "returns": fill(2.0)})
    return batch, Policy(policy.logp, value=fill(1.3).requires_grad_())


def make_case(*, padding: float) -> tuple[Batch, Policy]:
    return with_values(*invariance.usual(padding=padding), padding=padding)


def test_value_loss_by_hand() -> None:
    """A = 0, so that only ½·max((v − R)², (clip(v, v_old ± 0.2) − R)²) remains; coefficient 1."""
    cases = [  # v, v_old, R, loss, slope
        (1.0, 1.0, 0.5, 0.125, 0.5),  # ½·0.5²
        (0.5, 1.0, 0.0, 0.32, 0.0),  # clipped to 0.8: ½·0.8² > ½·0.5², so it has come too far already
        (0.5, 1.0, 1.0, 0.125, -0.5),  # ½·0.5² > ½·0.2²: it went the wrong way and may return
        (1.1, 1.0, 2.0, 0.405, -0.9),  # within the bounds: ½·0.9²
    ]
    v, old, R, loss, slope = (torch.tensor(x, dtype=torch.float64)[:, None] for x in zip(*cases, strict=True))
    zeros = torch.zeros(4, dtype=torch.float64)
    batch = one_token_batch(4, advantage=zeros, value_old=old, returns=R)
    policy = make_policy(batch, value=v.requires_grad_())
    terms = ppo(policy, batch, **KNOBS, value_coefficient=1.0, value_clip=0.2)
    torch.testing.assert_close(terms.loss, loss)
    torch.testing.assert_close(terms.metrics["value_loss"], loss)
    torch.testing.assert_close(torch.autograd.grad(terms.loss.sum(), v)[0], slope)
    free = ppo(policy, batch, **KNOBS, value_coefficient=1.0, value_clip=None)
    torch.testing.assert_close(free.loss, (v - R).square() / 2)


def test_agrees_with_a_plain_loop() -> None:
    batch, policy = make_case(padding=0.0)
    assert policy.value is not None
    assert batch.value_old is not None
    assert batch.returns is not None
    terms = PPO(policy, batch)
    surrogate = grpo(policy, batch, **KNOBS).loss
    for b in range(6):
        for t in range(int(batch.mask[b].sum())):
            v, old, R = (float(x.detach()[b, t]) for x in (policy.value, batch.value_old, batch.returns))
            error = max((v - R) ** 2, (min(max(v, old - 0.2), old + 0.2) - R) ** 2) / 2
            assert float(terms.loss[b, t]) == pytest.approx(float(surrogate[b, t]) + 0.5 * error, rel=1e-12)


def test_gradient_agrees_with_differences() -> None:
    batch, policy = make_case(padding=0.0)
    assert policy.value is not None
    assert torch.autograd.gradcheck(lambda p, v: PPO(Policy(p, value=v), batch).loss, (policy.logp, policy.value))


def test_invariances() -> None:
    invariance.check(PPO, make=make_case)


def test_gradients_are_finite() -> None:
    extremes.check(PPO, make=with_values)


def test_padding_does_not_reach_the_value() -> None:
    batch, policy = make_case(padding=math.nan)
    loss = torch.where(batch.mask, PPO(policy, batch).loss, 0.0).sum()
    assert policy.value is not None
    assert torch.autograd.grad(loss, policy.value)[0].isfinite().all()


def test_errors_name_the_fix() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match="pass advantage=gae"):
        PPO(make_policy(batch, value=batch.logp_old), batch)
    batch, policy = make_case(padding=0.0)
    with pytest.raises(ValueError, match=r"loss\.value_clip=0 must be positive, or null"):
        ppo(policy, batch, **KNOBS, value_coefficient=1.0, value_clip=0)
