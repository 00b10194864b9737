"""A smooth gate in place of clipping."""

import torch
from pydantic import PositiveFloat

from rlvr.objective.batch import Batch, Policy, Terms


def sapo(policy: Policy, batch: Batch, *, tau_pos: PositiveFloat, tau_neg: PositiveFloat) -> Terms:
    """−A·(4/τ)·σ(τ(r − 1)) per token [B, T], τ = tau_pos where A > 0, else tau_neg (SAPO, arXiv:2511.20347).

    The gradient in logp is −A·4σ(1 − σ)·r: −A at r = 1, and less the farther r is from 1, on either side. It is
    computed in closed form, because 1 − σ rounds to 0 for large r. log r is clamped to ±20; beyond that a token has no
    gradient. The paper averages with trainer.aggregation=seq-mean-token-mean.

    metrics["gate"] [B, T]: 4σ(1 − σ), 1 at r = 1.
    """
    log_ratio, advantage = batch.log_ratio(policy.logp), batch.token_advantage
    within = log_ratio.detach().abs() <= 20
    ratio = log_ratio.detach().clamp(-20, 20).exp()
    tau = torch.where(advantage > 0, tau_pos, tau_neg).to(ratio.dtype)
    z = tau * (ratio - 1)
    gate = 4 * z.sigmoid() * (-z).sigmoid()
    value = -advantage * 4 / tau * z.sigmoid()
    derivative = torch.where(within, -advantage * gate * ratio, 0.0)
    return Terms(value + derivative * (log_ratio - log_ratio.detach()), metrics={"gate": gate})
