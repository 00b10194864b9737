"""The clipped surrogate on the most uncertain tokens alone (80/20)."""

from typing import Annotated

from annotated_types import Gt, Interval
from pydantic import NonNegativeFloat
from torch import Tensor

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import Batch, Policy, Terms, first_pass, needs

Share = Annotated[float, Interval(ge=0, le=1)]


@needs("entropy")
def kept(policy: Policy, batch: Batch, *, fraction: Share) -> Tensor:
    """[B, T] bool: the tokens of a whole mini-batch whose entropy is at least its quantile of level 1 − fraction.

    The quantile interpolates linearly, in float64; ties are kept, and with fraction = 0 the maximum.
    """
    assert policy.entropy is not None
    entropy = policy.entropy.double()
    ordered = entropy[batch.mask].sort().values
    if not len(ordered):
        return batch.mask
    # Rounded, so that 0.8 · 15 is 12: a quantile that is one of the values must not be above it.
    place = round((1 - fraction) * (len(ordered) - 1), 9)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    return batch.mask & (entropy >= low + (place - int(place)) * (high - low))


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
