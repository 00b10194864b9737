"""The clipped surrogate on the most uncertain tokens alone (80/20)."""

from typing import Annotated

import torch
from annotated_types import Gt, Interval
from pydantic import NonNegativeFloat
from torch import Tensor

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy, Terms, first_pass, needs

Share = Annotated[float, Interval(ge=0, le=1)]


def quantile(values: Tensor, mask: Tensor, level: float) -> Tensor:
    """[B, 1] float64: the quantile of each row's values, interpolated linearly; NaN for a row of none. mask: [B, T]."""
    ordered = torch.where(mask, values.double(), torch.inf).sort(-1).values
    # Rounded, so that 0.8 · 15 is 12: a quantile that is one of the values must not be above it.
    place = (level * (mask.sum(-1, keepdim=True) - 1).clamp(min=0).double()).round(decimals=9)
    low, high = (ordered.gather(-1, index.long()) for index in (place.floor(), place.ceil()))
    return low + (place - place.floor()) * (high - low)


@needs("entropy")
def kept(policy: Policy, batch: Batch, *, fraction: Share) -> Tensor:
    """[B, T] bool: the tokens of a whole mini-batch whose entropy is at least its quantile of level 1 − fraction. Ties
    are kept, and with fraction = 0 the maximum."""
    assert policy.entropy is not None
    if not batch.mask.any():
        return batch.mask
    of_all = quantile(policy.entropy.flatten()[None], batch.mask.flatten()[None], 1 - fraction)
    return batch.mask & (policy.entropy.double() >= of_all)


@first_pass(kept)
@needs("entropy")
def high_entropy(
    policy: Policy,
    batch: Batch,
    *,
    fraction: Share,  # noqa: ARG001
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
) -> Terms:
    """`rlvr.loss.grpo` [B, T] where the entropy of the policy is in the upper `fraction` of the mini-batch, and 0
    elsewhere; all tokens stay in the mean (arXiv:2506.01939, with 20 % of the tokens).

    metrics: those of the surrogate; "kept" [B, T], 1 for a token that is learned from.
    """
    assert batch.extra is not None
    surrogate = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    is_kept = batch.extra.bool()
    return surrogate.without(~is_kept, kept=is_kept.float())
