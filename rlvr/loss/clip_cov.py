"""The clipped surrogate without some of the tokens whose covariance makes the entropy collapse."""

from typing import Annotated

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat
from torch import Tensor

from rlvr.loss.grpo import grpo
from rlvr.loss.kl_cov import covariance
from rlvr.objective.batch import Batch, Policy, Terms, first_pass, needs


@needs("noise")
def dropped(
    policy: Policy,
    batch: Batch,
    *,
    fraction: Annotated[float, Interval(gt=0, le=1)],
    low: float,
    high: float,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
) -> Tensor:
    """[B, T] bool: the tokens of a whole mini-batch of N tokens that lose their gradient.

    Candidates are the tokens with low < covariance < high that are not clipped. max(⌊N·fraction⌋, 1) of them, or all if
    they are fewer, are chosen by `batch.noise`.
    """
    if not low < high:
        raise ValueError(f"loss.low={low} must be less than loss.high={high}.")
    assert batch.noise is not None
    cov = covariance(policy, batch)
    clipped = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=None).metrics["clip_fraction"] > 0
    candidate = batch.mask & (cov > low) & (cov < high) & ~clipped
    num_dropped = min(max(int(int(batch.mask.sum()) * fraction), 1), int(candidate.sum()))
    if not num_dropped:
        return torch.zeros_like(candidate)
    return candidate & (batch.noise <= batch.noise[candidate].sort().values[num_dropped - 1])


@first_pass(dropped)
def clip_cov(
    policy: Policy,
    batch: Batch,
    *,
    fraction: Annotated[float, Interval(gt=0, le=1)],  # noqa: ARG001
    low: float,  # noqa: ARG001
    high: float,  # noqa: ARG001
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
) -> Terms:
    """Clipped surrogate [B, T] that is 0 for the dropped tokens, which still count in the mean (Clip-Cov,
    arXiv:2505.22617).

    fraction, low, high: how many tokens are dropped, with which covariances of advantage and log-probability: see
    `dropped`.

    metrics: "clip_fraction" of the surrogate; "dropped" [B, T], 1 for a dropped token.
    """
    assert batch.extra is not None
    surrogate = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=None)
    is_dropped = batch.extra.bool()
    return surrogate.without(is_dropped, dropped=is_dropped.float())
