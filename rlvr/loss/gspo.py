"""The clipped surrogate on the ratio of whole responses."""

import torch
from pydantic import NonNegativeFloat

from rlvr.objective.batch import Batch, Policy, Terms, per_response


@per_response
def gspo(policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat) -> Terms:
    """max(−A·s, −A·clip(s, 1 − clip_low, 1 + clip_high)) per response [B], s = e^{mean_t(logp − logp_old)}
    (GSPO, arXiv:2507.18071, Eq. 5 to 7).

    s is the geometric mean of a response's token ratios: it changes a hundred times less than one of them, so the
    bounds are as much smaller. The mean log ratio is clamped to ±20; beyond that a response has no gradient.
    A: one advantage per response. metrics, [B]: "clip_fraction" as in `rlvr.loss.grpo`; "sequence_ratio" s.
    Raises ValueError for an advantage per token.
    """
    advantage = batch.response_advantage("gspo")
    length = batch.mask.sum(-1).clamp(min=1)
    log_ratio = batch.log_ratio(policy.logp).sum(-1) / length
    ratio = log_ratio.clamp(-20, 20).exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    metrics = {"clip_fraction": (clipped > plain).float(), "sequence_ratio": ratio.detach()}
    return Terms(torch.maximum(plain, clipped), metrics)
