"""The policy gradient with clipped importance weights: every token keeps its gradient."""

from typing import Annotated

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat

from rlvr.objective.batch import Batch, Policy, Terms


def cispo(
    policy: Policy, batch: Batch, *, clip_low: Annotated[float, Interval(ge=0, le=1)], clip_high: NonNegativeFloat
) -> Terms:
    """−sg(clip(r, 1 − clip_low, 1 + clip_high))·A·logp per token [B, T] (CISPO, MiniMax-M1, arXiv:2506.13585, Eq. 4).

    r = π/π_old, without gradient (sg): a token that the clipped surrogate would drop keeps the bound as its weight.
    clip_low = 1 bounds r from above only, as the paper does. log r is clamped to ±20 first.

    metrics["clip_fraction"] [B, T]: 1 where r lies beyond a bound.
    """
    logp = torch.where(batch.mask, policy.logp, 0.0)
    ratio = batch.log_ratio(policy.logp.detach()).clamp(-20, 20).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return Terms(loss=-weight * batch.token_advantage * logp, metrics={"clip_fraction": (weight != ratio).float()})
