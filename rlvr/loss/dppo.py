"""The policy gradient of tokens whose probability has not moved too far: trust regions on probabilities, not ratios."""

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms

Region = Literal["tv", "kl"]
TINY = 1e-8  # added to 1 − probability, as in the reference implementations


def dppo(
    policy: Policy,
    batch: Batch,
    *,
    region: Region,
    delta_low: NonNegativeFloat,
    delta_high: NonNegativeFloat,
    cap: PositiveFloat | None,
    quadratic: NonNegativeFloat,
) -> Terms:
    """−A·sg(min(r, cap))·M·logp + quadratic·(log r)² per token [B, T] (DPPO, arXiv:2602.04879).

    M drops tokens that have moved away from the policy that sampled, with p, q the probabilities of the token now and
    then: `tv` where A > 0 and p − q > delta_high, or A < 0 and q − p > delta_low; `kl` where A > 0, p > q and
    D > delta_high, or A < 0, p < q and D > delta_low, D the KL divergence of "this token or another", q from p. Dropped
    tokens stay in the mean.
    cap: largest weight r; None: e^20. quadratic: of all tokens, dropped ones too (Kimi K2.5, arXiv:2602.02276).

    metrics["dropped"] [B, T]: 1 where M = 0.
    """
    logp = torch.where(batch.mask, policy.logp, 0.0)
    log_ratio, advantage = batch.log_ratio(policy.logp), batch.token_advantage
    away, distance = _distance(logp.detach(), log_ratio.detach(), region)
    dropped = ((advantage > 0) & (away > 0) & (distance > delta_high)) | (
        (advantage < 0) & (away < 0) & (distance > delta_low)
    )
    weight = log_ratio.detach().clamp(max=20).exp()
    weight = torch.where(dropped, 0.0, weight if cap is None else weight.clamp(max=cap))
    loss = -advantage * weight * logp + quadratic * log_ratio.square()
    return Terms(loss=loss, metrics={"dropped": dropped.float()})


def _distance(logp: Tensor, log_ratio: Tensor, region: Region) -> tuple[Tensor, Tensor]:
    """(p − q, distance of p and q) of each token. logp: log p; log_ratio: log p − log q."""
    q = (logp - log_ratio).exp()
    away = q * torch.expm1(log_ratio)
    if region == "tv":
        return away, away.abs()
    other_q, other_p = (
        -torch.expm1(log.clamp(max=0)) for log in (logp - log_ratio, logp)
    )  # 1 − q, 1 − p, exact near 1
    return away, -q * log_ratio + other_q * ((other_q + TINY) / (other_p + TINY)).log()
