"""The plain policy gradient."""

from __future__ import annotations

import torch

from rlvr.objective.batch import Batch, Policy, Terms


def reinforce(policy: Policy, batch: Batch) -> Terms:
    """−A·logp per token, [B, T] (Williams 1992). On-policy: no ratio corrects for updates since the rollout."""
    advantage = batch.advantage if batch.advantage.dim() == 2 else batch.advantage[:, None]
    advantage = torch.where(batch.mask, advantage, 0.0)
    return Terms(loss=-advantage * torch.where(batch.mask, policy.logp, 0.0))
