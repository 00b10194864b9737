"""Losses that read optional outputs of the trainer (noise, entropy, values, log Z), for its tests."""

import functools
from typing import Any

import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy, Terms, first_pass, needs
from tests.trainer.tiny import surrogate


@needs("noise", "entropy")
def ranks_of_tokens(policy: Policy, batch: Batch, *, share: float) -> Tensor:
    """[B, T]: 1 for the share of all tokens with the smallest logp + noise + entropy + logp_ref."""
    assert batch.noise is not None
    assert batch.logp_ref is not None
    assert policy.entropy is not None
    assert not policy.logp.requires_grad
    score = (policy.logp + batch.noise + policy.entropy + batch.logp_ref)[batch.mask]
    least = score.topk(max(1, int(share * len(score))), largest=False).indices
    return torch.zeros(batch.mask.shape).masked_scatter(
        batch.mask.cpu(), torch.zeros(len(score)).index_fill(0, least.cpu(), 1.0)
    )


@first_pass(ranks_of_tokens)
@needs("reference")
def selective(policy: Policy, batch: Batch, *, share: float, weight: float) -> Terms:
    """The surrogate on the tokens of the first pass: a wrong choice of tokens changes the gradient."""
    assert batch.extra is not None
    assert batch.logp_ref is not None
    assert policy.entropy is None or policy.entropy.requires_grad
    of_all_tokens = surrogate(policy, batch)
    distance = weight * (policy.logp - batch.logp_ref).square()
    return Terms(of_all_tokens.loss * batch.extra + distance, {"chosen": batch.extra})


def sums(policy: Policy, batch: Batch) -> Tensor:
    """[B]: each group's sum of log-probabilities less the mean over the whole mini-batch."""
    total = torch.where(batch.mask, policy.logp, 0.0).sum(1)
    groups = total.new_zeros(batch.num_groups).index_add(0, batch.group, total)
    return groups[batch.group] - total.mean()


@first_pass(sums)
def centred(policy: Policy, batch: Batch) -> Terms:
    assert batch.extra is not None
    return Terms(batch.extra * torch.where(batch.mask, policy.logp, 0.0).sum(1))


@needs("value")
def with_value(policy: Policy, batch: Batch) -> Terms:
    """The surrogate, and the squared distance of the value to the reward."""
    assert policy.value is not None
    return Terms(surrogate(policy, batch).loss + (policy.value - batch.reward[:, None] - 1).square())


@needs("log_z")
def with_log_z(policy: Policy, batch: Batch) -> Terms:
    assert policy.log_z is not None
    return Terms((policy.log_z + policy.logp.sum(1) - batch.advantage - 3).square(), {"log_z": policy.log_z})


SELECTIVE: Any = functools.partial(selective, share=0.3, weight=0.1)
