"""Proximal policy optimisation with a value head."""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy, Terms, needs


@needs("value", "returns")
def ppo(
    policy: Policy,
    batch: Batch,
    *,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
    value_coefficient: NonNegativeFloat,
    value_clip: PositiveFloat | None,
) -> Terms:
    """Clipped surrogate + value_coefficient · value loss, per token [B, T] (PPO, arXiv:1707.06347).

    The surrogate is `rlvr.loss.grpo`'s, usually on the advantage `gae`. The value loss of v = V(s_t), against
    `batch.returns` R, is ½·max((v − R)², (clip(v, v_old ± value_clip) − R)²), and ½(v − R)² where value_clip is None;
    v_old is `batch.value_old`. Both heads share the model, so that the value's gradient changes it too, unless
    trainer.critic=own.

    metrics: those of the surrogate; "value_loss" and "value" [B, T]. Raises ValueError without returns.
    """
    if batch.returns is None or batch.value_old is None or policy.value is None:
        raise ValueError("loss=ppo learns returns, which this advantage does not compute: pass advantage=gae.")
    surrogate = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    value, old, returns = (torch.where(batch.mask, t, 0.0) for t in (policy.value, batch.value_old, batch.returns))
    error = _value_loss(value, old, returns, value_clip)
    metrics = {**surrogate.metrics, "value_loss": error, "value": value}
    return replace(surrogate, loss=surrogate.loss + value_coefficient * error, metrics=metrics)


def _value_loss(value: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    plain = (value - returns).square()
    if clip is None:
        return plain / 2
    clipped = torch.clamp(value, old - clip, old + clip)
    return torch.maximum(plain, (clipped - returns).square()) / 2
