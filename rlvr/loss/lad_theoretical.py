"""LAD's theoretical loss (arXiv:2602.20132, Eq. 7): the f-divergence between two distributions over a few answers."""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor

from rlvr.objective.batch import (
    Batch,
    Divergence,
    Policy,
    Terms,
    check_values,
    compares_responses,
    one_token_responses,
    per_response,
    value_and_derivative,
    whole_groups,
)


@compares_responses
@one_token_responses
@per_response
@whole_groups
def lad_theoretical(policy: Policy, batch: Batch, *, divergence: Divergence, eta: PositiveFloat) -> Terms:
    """(w/Z_A)·f((r/w)·(Z_A/Z_π)) per response, [B], with w = e^{A/η}, r = π/π_old, Z_A = mean w, Z_π = mean r.

    The means are over the responses to one prompt: all answers of a small action space, once each or as sampled by
    π_old. `lad` omits both normalisers, which cannot be computed for a model that writes text. The gradient includes
    that of Z_π: the loss does not change when all r change by one factor, and its minimum, 0, is at r ∝ w.
    divergence: one of rlvr/objective/divergence.py. eta: > 0. The advantage is [B]; a response has one token or none.

    metrics["divergence"]: the value, in nats, [B]. Value and derivative are exact as in `lad`; normalised, w and r are
    at most the number of responses, so nothing overflows at any η.
    Raises ValueError for an advantage per token and responses of several tokens.
    """
    if batch.advantage.dim() == 2:
        raise ValueError("loss=lad_theoretical takes one advantage per response. Pass advantage=grpo, or loss=lad.")
    check_values(lad_theoretical, batch)
    log_ratio = batch.log_ratio(policy.logp)
    wide = torch.promote_types(log_ratio.dtype, torch.float32)
    real = batch.mask.any(-1)
    log_r = _normalised(log_ratio.to(wide).sum(-1), real, batch)
    log_w = _normalised(batch.advantage.to(wide) / eta, real, batch)
    value, derivative = value_and_derivative(divergence, log_r.detach(), log_w)
    return Terms(loss=value + derivative * (log_r - log_r.detach()), metrics={"divergence": value})


def _normalised(log: Tensor, real: Tensor, batch: Batch) -> Tensor:
    """log(e^log / mean of e^log in the group), [B]; 0 for rows without tokens, which are not part of the mean."""
    lowest = log.new_full((batch.num_groups,), -math.inf)
    masked_log = torch.where(real, log, -math.inf)
    highest = lowest.scatter_reduce(0, batch.group, masked_log.detach(), "amax")
    shift = torch.where(highest.isfinite(), highest, 0.0)[batch.group]
    sums = log.new_zeros(batch.num_groups).index_add(0, batch.group, torch.where(real, (log - shift).exp(), 0.0))
    size = log.new_zeros(batch.num_groups).index_add(0, batch.group, real.to(log.dtype))
    mean = torch.where(size > 0, sums / size.clamp(min=1), 1.0)
    return torch.where(real, log - shift - mean[batch.group].log(), 0.0)
