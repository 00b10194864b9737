"""FlowRL: match the whole distribution of rewards, not its maximum."""

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, needs, per_response

Weight = Literal["clip", "cap", "none", "unclipped"]
CAP = 10.0


@per_response
@needs("log_z", "reference")
def flowrl(
    policy: Policy,
    batch: Batch,
    *,
    beta: PositiveFloat,
    weight: Weight,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
) -> Terms:
    """w·δ² of each response [B] with δ = log Z + mean_t logp − β·A − mean_t logp_ref (FlowRL, arXiv:2509.15207).

    log Z is predicted from the prompt and learned, with gradient into the model. β > 0; A: one advantage per response.
    w has no gradient and is a function of the ratio e^{Σ_t(logp − logp_old)} (the sum clamped to ±20): `clip` bounds
    the ratio to [1 − clip_low, 1 + clip_high] as the paper does, `cap` bounds it by 10 from above, `unclipped` is the
    ratio itself; `none` is 1 for all responses.

    metrics, [B]: "delta_abs" |δ|, "log_z", "weight". Raises ValueError for an advantage per token.
    """
    advantage = batch.response_advantage("flowrl")
    assert policy.log_z is not None
    assert batch.logp_ref is not None
    length = batch.mask.sum(-1).clamp(min=1)
    distance = torch.where(batch.mask, policy.logp - batch.logp_ref, 0.0).sum(-1) / length
    delta = policy.log_z + distance - beta * advantage
    log_ratio = batch.log_ratio(policy.logp.detach()).sum(-1)
    w = _weight(log_ratio, weight, clip_low, clip_high)
    return Terms(w * delta.square(), {"delta_abs": delta.abs(), "log_z": policy.log_z, "weight": w})


def _weight(log_ratio: Tensor, weight: Weight, clip_low: float, clip_high: float) -> Tensor:
    ratio = log_ratio.clamp(-20, 20).exp()
    match weight:
        case "clip":
            return ratio.clamp(1 - clip_low, 1 + clip_high)
        case "cap":
            return ratio.clamp(max=CAP)
        case "unclipped":
            return ratio
        case "none":
            return torch.ones_like(ratio)
