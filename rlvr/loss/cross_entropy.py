"""Exact maximum likelihood, for tasks whose answers are known."""

from __future__ import annotations

import torch

from rlvr.objective.batch import Batch, Policy, Terms, needs


@needs("solution")
def cross_entropy(policy: Policy, batch: Batch) -> Terms:
    """−logp of each token of the known answer, [B, T]: what MaxRL approaches as its samples grow (arXiv:2602.02710).

    `solution`: the batch's rows are not what the policy sampled but one known answer to each problem, from the task's
    own `solution`. With one right answer y to a problem, p = π(y) and the gradient is that of −log p: the population
    weight is 1/p. Summed over a response's tokens it is −log π(y), so
    `trainer.aggregation=seq-mean-token-sum` is the likelihood proper; under `token-mean` long answers count more.
    """
    return Terms(loss=-torch.where(batch.mask, policy.logp, 0.0))
