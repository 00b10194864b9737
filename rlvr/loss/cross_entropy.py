"""Exact maximum likelihood, for tasks whose answers are known."""

import torch

from rlvr.objective.batch import Batch, Policy, Terms, needs


@needs("solution")
def cross_entropy(policy: Policy, batch: Batch) -> Terms:
    """−logp of each token of the known answer, [B, T]: what MaxRL approaches as its samples grow (arXiv:2602.02710).

    @needs("solution"): the batch's rows are not samples of the policy but one known answer per problem, from the task's
    method `solution`. With one right answer y to a problem, p = π(y) and the gradient is that of −log p: the population
    weight is 1/p. The sum over a response's tokens is −log π(y), so that `trainer.aggregation=seq-mean-token-sum` is
    the exact likelihood; under `token-mean` long answers count more.
    """
    return Terms(loss=-torch.where(batch.mask, policy.logp, 0.0))
