import math
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.loss.grpo import grpo
from rlvr.loss.ppo import ppo
from tests.loss.by_hand import column
from tests.loss.test_laws import equipped, usual
from tests.support.factories import make_policy, one_token_batch

KNOBS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
PPO = partial(ppo, **KNOBS, value_coefficient=0.5, value_clip=0.2)


def test_value_loss_by_hand() -> None:
    """A = 0, so that only ½·max((v − R)², (clip(v, v_old ± 0.2) − R)²) remains; coefficient 1."""
    cases = [  # v, v_old, R, loss, slope
        (1.0, 1.0, 0.5, 0.125, 0.5),  # ½·0.5²
        (0.5, 1.0, 0.0, 0.32, 0.0),  # clipped to 0.8: ½·0.8² > ½·0.5², so it has come too far already
        (0.5, 1.0, 1.0, 0.125, -0.5),  # ½·0.5² > ½·0.2²: it went the wrong way and may return
        (1.1, 1.0, 2.0, 0.405, -0.9),  # within the bounds: ½·0.9²
    ]
    v, old, R, loss, slope = map(column, zip(*cases, strict=True))
    batch = one_token_batch(4, advantage=torch.zeros(4, dtype=torch.float64), value_old=old, returns=R)
    policy = make_policy(batch, value=v.requires_grad_())
    terms = ppo(policy, batch, **KNOBS, value_coefficient=1.0, value_clip=0.2)
    torch.testing.assert_close(terms.loss, loss)
    torch.testing.assert_close(terms.metrics["value_loss"], loss)
    torch.testing.assert_close(torch.autograd.grad(terms.loss.sum(), v)[0], slope)
    free = ppo(policy, batch, **KNOBS, value_coefficient=1.0, value_clip=None)
    torch.testing.assert_close(free.loss, (v - R).square() / 2)


def test_agrees_with_a_plain_loop() -> None:
    batch, policy = equipped(PPO, *usual(padding=0.0))
    assert policy.value is not None
    assert batch.value_old is not None
    assert batch.returns is not None
    terms = PPO(policy, batch)
    surrogate = grpo(policy, batch, **KNOBS).loss
    for b, t in batch.mask.nonzero().tolist():
        v, old, R = (float(x.detach()[b, t]) for x in (policy.value, batch.value_old, batch.returns))
        error = max((v - R) ** 2, (min(max(v, old - 0.2), old + 0.2) - R) ** 2) / 2
        assert float(terms.loss[b, t]) == pytest.approx(float(surrogate[b, t]) + 0.5 * error, rel=1e-12)


def test_padding_does_not_reach_the_value() -> None:
    batch, policy = equipped(PPO, *usual(padding=math.nan), padding=math.nan)
    loss = torch.where(batch.mask, PPO(policy, batch).loss, 0.0).sum()
    assert policy.value is not None
    assert torch.autograd.grad(loss, policy.value)[0].isfinite().all()
