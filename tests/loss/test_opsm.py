"""Off-policy sequence masking: which responses are masked, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from rlvr.loss.grpo import grpo
from rlvr.loss.opsm import opsm
from tests.loss import extremes, invariance
from tests.support.factories import make_batch, make_policy

SURROGATE = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
OPSM = partial(opsm, delta=0.1, **SURROGATE)


def test_wrong_responses_that_became_unlikelier_than_delta_are_masked_and_no_others() -> None:
    """Means of logp_old − logp: 0.2 (A < 0: masked), 0.1 (not more than delta), −0.2 (likelier), 0.2 (A > 0)."""
    batch = make_batch(
        num_groups=1,
        num_samples=4,
        num_tokens=2,
        lengths=[2, 1, 2, 2],
        dtype=torch.float64,
        logp_old=torch.full((4, 2), -2.0, dtype=torch.float64),
        advantage=torch.tensor([-1.0, -1.0, -1.0, 1.0], dtype=torch.float64),
    )
    policy = make_policy(batch, log_ratio=torch.tensor([[-0.5, 0.1], [-0.09999, 9.0], [0.2, 0.2], [-0.1, -0.3]]))
    terms, plain = OPSM(policy, batch), grpo(policy, batch, **SURROGATE)
    assert terms.metrics["masked"][:, 0].tolist() == [1, 0, 0, 0]
    assert torch.equal(terms.loss[1:], plain.loss[1:])
    assert not terms.loss[0].any()
    (slope,) = torch.autograd.grad(terms.loss.sum(), policy.logp)
    assert not slope[0].any()


def test_the_engines_log_probability_counts_where_it_is_known() -> None:
    batch = make_batch(dtype=torch.float64, advantage=-torch.ones(6, dtype=torch.float64))
    policy = make_policy(batch, log_ratio=0.0)
    assert not OPSM(policy, batch).metrics["masked"].any()
    engine = (batch.logp_old + 0.2).index_fill(0, torch.tensor([5]), torch.nan)  # the last response's are not known
    masked = OPSM(policy, replace(batch, logp_engine=engine)).metrics["masked"][:, 0]
    assert masked.tolist() == [1, 1, 1, 1, 1, 0]


def test_invariances_and_extremes() -> None:
    invariance.check(OPSM)
    extremes.check(OPSM)


def test_an_advantage_per_token_is_refused() -> None:
    batch = make_batch(advantage=torch.zeros(6, 4))
    with pytest.raises(ValueError, match="loss=opsm takes one advantage per response"):
        OPSM(make_policy(batch), batch)
