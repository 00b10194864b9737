"""The geometric mean of a response's clipped token ratios."""

import torch
from pydantic import NonNegativeFloat

from rlvr.objective.batch import Batch, Policy, Terms, per_response


@per_response
def gmpo(policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat) -> Terms:
    """−A·e^{mean_t c} per response [B], c = min(log r, clip_high) where A > 0, else max(log r, −clip_low) (GMPO,
    arXiv:2507.20673).

    The bounds are those of log r of each token, and one-sided: a clipped token has no gradient, the others keep theirs.
    metrics, [B]: "clip_fraction", the share of a response's tokens that are clipped. Raises ValueError for an advantage
    per token.
    """
    advantage, log_ratio = batch.response_advantage("gmpo"), batch.log_ratio(policy.logp)
    right = (advantage > 0)[:, None]
    clipped = torch.where(right, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    length = batch.mask.sum(-1).clamp(min=1)
    share = (clipped != log_ratio).sum(-1) / length
    return Terms(-advantage * (clipped.sum(-1) / length).exp(), metrics={"clip_fraction": share})
