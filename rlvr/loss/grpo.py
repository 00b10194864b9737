"""The clipped surrogate of PPO, GRPO and DAPO."""

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import NonNegativeFloat

from rlvr.objective.batch import Batch, Policy, Terms


def grpo(
    policy: Policy,
    batch: Batch,
    *,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
) -> Terms:
    """max(−A·r, −A·clip(r, 1 − clip_low, 1 + clip_high)) per token [B, T] (GRPO, arXiv:2402.03300; separate
    bounds: DAPO, arXiv:2503.14476, section 3.1).

    r = π/π_old. dual_clip: a number c > 1 bounds the loss by −A·c where A < 0 (arXiv:1912.09729); None: no such bound,
    as in the papers. log r is clamped to ±20; beyond that a token has no gradient.

    metrics["clip_fraction"]: 1 where the clipped branch is larger, so that the token has no gradient: A > 0 and
    r > 1 + clip_high, or A < 0 and r < 1 − clip_low. metrics["dual_clip_fraction"], with dual_clip only: 1 where the
    loss is −A·c. Both [B, T]; averaged over tokens they are fractions.
    """
    ratio = batch.log_ratio(policy.logp).clamp(-20, 20).exp()
    advantage = batch.token_advantage
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    metrics = {"clip_fraction": (clipped > plain).float()}
    if dual_clip is not None:
        bound = -advantage * dual_clip
        bounded = (advantage < 0) & (loss > bound)
        loss = torch.where(bounded, bound, loss)
        metrics["dual_clip_fraction"] = bounded.float()
    return Terms(loss=loss, metrics=metrics)
