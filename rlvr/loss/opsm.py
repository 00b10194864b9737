"""The clipped surrogate without wrong responses that the policy has left behind."""

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import NonNegativeFloat

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy, Terms


def opsm(
    policy: Policy,
    batch: Batch,
    *,
    delta: NonNegativeFloat,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
) -> Terms:
    """`rlvr.loss.grpo` [B, T], and 0 in responses with A < 0 and mean_t(logp_old − logp) > delta: off-policy sequence
    masking (DeepSeek-V3.2, arXiv:2512.02556, Eq. 9).

    logp_old in that mean is the engine's where it is known: what sampled the response. Masked responses stay in every
    denominator, as in TRL and slime. metrics: those of the surrogate; "masked" [B, T]. Raises ValueError for an
    advantage per token.
    """
    advantage = batch.response_advantage("opsm")
    sampled = batch.logp_old
    if batch.logp_engine is not None:
        sampled = torch.where(batch.logp_engine.isfinite(), batch.logp_engine, sampled)
    left = torch.where(batch.mask, sampled - policy.logp.detach(), 0.0).sum(-1) / batch.mask.sum(-1).clamp(min=1)
    masked = ((advantage < 0) & (left > delta))[:, None].expand(batch.mask.shape)
    surrogate = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return surrogate.without(masked, masked=masked.float())
