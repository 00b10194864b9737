"""Small cases for numbers worked by hand, and plain loops over tokens and responses to compare a loss with."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Loss, Policy, Terms
from tests.support.factories import make_batch, make_policy, one_token_batch


def column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def arms(advantage: Sequence[float], log_ratio: Sequence[float] | float = 0.0, **fields: Any) -> tuple[Batch, Policy]:
    """Responses of one token to one prompt. fields: of the policy."""
    batch = one_token_batch(len(advantage), advantage=column(advantage)[:, 0])
    step = log_ratio if isinstance(log_ratio, float) else column(log_ratio)
    return batch, make_policy(batch, log_ratio=step, **fields)


def responses(advantage: Sequence[float], log_ratio: Sequence[Sequence[float]]) -> tuple[Batch, Policy]:
    """Responses to one prompt, given by the log ratios of their tokens."""
    lengths = [len(row) for row in log_ratio]
    T = max(lengths)
    shape: dict[str, Any] = {"num_groups": 1, "num_samples": len(lengths), "num_tokens": T, "lengths": lengths}
    batch = make_batch(**shape, dtype=torch.float64, advantage=column(advantage)[:, 0])
    steps = [[*row, *[7.0] * (T - len(row))] for row in log_ratio]  # padding counts for nothing
    return batch, make_policy(batch, log_ratio=torch.tensor(steps, dtype=torch.float64))


def gradient(terms: Terms, policy: Policy) -> Tensor:
    """Of the sum of all terms, in logp, [B, T]."""
    return torch.autograd.grad(terms.loss.sum(), policy.logp, retain_graph=True)[0]


def check_tokens(loss: Loss, expected: Callable[..., float], *, log_ratio: Tensor | float | None = None) -> None:
    """expected: the loss of a token from its advantage, log-probabilities now and when sampled, and its entropy."""
    batch = make_batch(num_groups=4, num_samples=4, num_tokens=6, dtype=torch.float64)
    policy = make_policy(batch, log_ratio=log_ratio)
    assert policy.entropy is not None
    terms = loss(policy, batch)
    for b, t in batch.mask.nonzero().tolist():
        token = (batch.advantage[b], policy.logp[b, t], batch.logp_old[b, t], policy.entropy[b, t])
        assert terms.loss[b, t].item() == pytest.approx(expected(*(x.item() for x in token)), rel=1e-12)


def check_responses(loss: Loss, expected: Callable[[float, list[float]], float]) -> None:
    """expected: the loss of a response from its advantage and the log ratios of its tokens."""
    batch = make_batch(num_groups=4, num_samples=4, num_tokens=6, dtype=torch.float64)
    policy = make_policy(batch)
    terms = loss(policy, batch)
    for b, real in enumerate(batch.mask):
        log_ratios = (policy.logp - batch.logp_old)[b][real].tolist()
        assert terms.loss[b].item() == pytest.approx(expected(batch.advantage[b].item(), log_ratios), rel=1e-12)
