"""The plain policy gradient."""

import torch

from rlvr.objective.batch import Batch, Policy, Terms, no_ratio


@no_ratio
def reinforce(policy: Policy, batch: Batch) -> Terms:
    """−A·logp per token, [B, T] (Williams 1992). On-policy: no ratio corrects for updates since the rollout."""
    return Terms(loss=-batch.token_advantage * torch.where(batch.mask, policy.logp, 0.0))
