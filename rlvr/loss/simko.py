"""The clipped surrogate that shares what right answers gain among the most probable tokens, where the policy wavers."""

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import NonNegativeFloat, PositiveInt

from rlvr.loss.grpo import grpo
from rlvr.loss.high_entropy import Share
from rlvr.loss.high_entropy import quantile as of_rows
from rlvr.objective.batch import Batch, Policy, Terms, binary_rewards, needs


@binary_rewards
@needs("entropy", "candidates")
def simko(
    policy: Policy,
    batch: Batch,
    *,
    num_candidates: PositiveInt,  # noqa: ARG001
    quantile: Share,
    share: Share,
    penalty: NonNegativeFloat,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    dual_clip: Annotated[float, Gt(1)] | None,
) -> Terms:
    """`rlvr.loss.grpo` [B, T], changed at tokens whose entropy is above the quantile of their response (SimKO,
    arXiv:2510.14807): where the reward is 1, `share` of the gradient of r goes to the candidates, the most probable
    tokens, in equal parts: (1 − share)·r·∇log π + share·r·mean_k ∇log π_k; where A < 0 and the token is the most
    probable one, A is multiplied by `penalty`.

    Differs from the authors' code, share/K·Σ_k sg(r/(r_k + 1e-8))·r_k with r_k = π_k/π_old,k, which is the same but for
    the 1e-8: candidates of the policy that sampled need not be known.

    metrics: those of the surrogate; "uncertain" [B, T], 1 above the quantile.
    """
    assert policy.entropy is not None
    assert policy.candidates is not None
    entropy = policy.entropy.detach()
    uncertain = batch.mask & (entropy > of_rows(entropy, batch.mask, quantile))
    moved = torch.where(batch.mask, policy.candidates.mean(-1) - policy.logp, 0.0)
    shared = share * (uncertain & (batch.reward == 1)[:, None]) * (moved - moved.detach())
    is_first = (policy.logp >= policy.candidates[..., 0]) & (batch.token_advantage.sum(-1) < 0)[:, None]
    advantage = batch.token_advantage * torch.where(uncertain & is_first, penalty, 1.0)
    changed = replace(policy, logp=policy.logp + shared), replace(batch, advantage=advantage)
    surrogate = grpo(*changed, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return Terms(surrogate.loss, {**surrogate.metrics, "uncertain": uncertain.float()})
