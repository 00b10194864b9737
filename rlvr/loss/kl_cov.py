"""Policy gradient with a KL penalty on the tokens whose covariance makes the entropy collapse."""

from typing import Annotated

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, first_pass
from rlvr.objective.divergence import ROUNDING


def covariance(policy: Policy, batch: Batch) -> Tensor:
    """(A − Ā)(logp − mean logp) of each token of a whole mini-batch, [B, T] float64; 0 at padding.

    Exactly 0 everywhere if all advantages are equal, so that rounding errors do not decide between equal tokens.
    """
    mask = batch.mask
    A, logp = batch.token_advantage[mask].double(), policy.logp[mask].double()
    centred = torch.zeros_like(A) if bool((A[:1] == A).all()) else A - A.mean()
    return torch.zeros(mask.shape, dtype=A.dtype, device=A.device).masked_scatter(mask, centred * (logp - logp.mean()))


def largest(policy: Policy, batch: Batch, *, fraction: Annotated[float, Interval(gt=0, le=1)]) -> Tensor:
    """[B, T]: 1 for the max(1, ⌊N·fraction⌋) of N tokens with the largest covariance, else 0.

    Tokens that tie for the last places share them, in equal fractions: a choice would depend on the order of rows.
    """
    mask = batch.mask
    covariances = covariance(policy, batch)[mask]
    num_chosen = max(1, int(len(covariances) * fraction))
    threshold = covariances.topk(num_chosen).values[-1]
    above, tied = covariances > threshold, covariances == threshold
    share = (num_chosen - above.sum()) / tied.sum()
    weight = torch.where(above, 1.0, torch.where(tied, share, 0.0)).to(policy.logp.dtype)
    return torch.zeros(mask.shape, dtype=weight.dtype, device=weight.device).masked_scatter(mask, weight)


@first_pass(largest)
def kl_cov(
    policy: Policy,
    batch: Batch,
    *,
    fraction: Annotated[float, Interval(gt=0, le=1)],  # noqa: ARG001
    coefficient: NonNegativeFloat,
) -> Terms:
    """−A·r per token [B, T], plus coefficient·|logp − logp_old| on the chosen ones (KL-Cov, arXiv:2505.22617).

    The ratio r is not clipped; log r is clamped to ±20, and beyond that −A·r has no gradient. Chosen is the `fraction`
    of the mini-batch's tokens with the largest covariance of advantage and log-probability: see `largest`. Up to
    ROUNDING nats the distance is 0: in the first update it is rounding, whose sign would be a gradient of full size.

    metrics["chosen"]: 1 for chosen tokens, [B, T].
    """
    assert batch.extra is not None
    log_ratio = batch.log_ratio(policy.logp)
    chosen = torch.where(batch.mask, batch.extra, 0.0)
    distance = torch.nn.functional.hardshrink(log_ratio, ROUNDING).abs()
    loss = -batch.token_advantage * log_ratio.clamp(-20, 20).exp() + coefficient * chosen * distance
    return Terms(loss=loss, metrics={"chosen": chosen})
