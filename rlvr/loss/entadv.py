"""The clipped surrogate on advantages that favour uncertain tokens."""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import NonNegativeFloat

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy, Terms, needs


@needs("entropy")
def entadv(
    policy: Policy,
    batch: Batch,
    *,
    alpha: NonNegativeFloat,
    kappa: Annotated[float, Gt(1)],
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
) -> Terms:
    """`rlvr.loss.grpo` on A + min(α·H, |A|/κ) per token [B, T] (arXiv:2506.14758).

    H: entropy of the current policy at each token, nats, without gradient. α ≥ 0, κ > 1: no advantage changes its sign,
    and A = 0 stays 0. The shaping starts from `batch.advantage` in each update, so that it does not compound over
    epochs. It is not an advantage function because those have only the entropy of the policy that sampled.

    metrics: those of the surrogate; "shaping" [B, T], what was added to A.
    """
    assert policy.entropy is not None
    advantage = batch.token_advantage
    entropy = torch.where(batch.mask, policy.entropy.detach(), 0.0)
    shaping = torch.minimum(alpha * entropy, advantage.abs() / kappa)
    shaped = replace(batch, advantage=advantage + shaping)
    terms = grpo(policy, shaped, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return replace(terms, metrics={**terms.metrics, "shaping": shaping})
