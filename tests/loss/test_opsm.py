from dataclasses import replace
from functools import partial

import torch

from rlvr.loss.grpo import grpo
from rlvr.loss.opsm import opsm
from tests.loss.by_hand import gradient, responses
from tests.support.factories import make_batch, make_policy

SURROGATE = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
OPSM = partial(opsm, delta=0.1, **SURROGATE)


def test_wrong_responses_that_became_unlikelier_than_delta_are_masked_and_no_others() -> None:
    """Means of logp_old − logp: 0.2 (A < 0: masked), 0.1 (not more than delta), −0.2 (likelier), 0.2 (A > 0)."""
    steps = [[-0.5, 0.1], [-0.09999], [0.2, 0.2], [-0.1, -0.3]]
    batch, policy = responses([-1.0, -1.0, -1.0, 1.0], steps)
    terms, plain = OPSM(policy, batch), grpo(policy, batch, **SURROGATE)
    assert terms.metrics["masked"][:, 0].tolist() == [1, 0, 0, 0]
    assert torch.equal(terms.loss[1:], plain.loss[1:])
    assert not terms.loss[0].any()
    assert not gradient(terms, policy)[0].any()


def test_the_engines_log_probability_counts_where_it_is_known() -> None:
    batch = make_batch(dtype=torch.float64, advantage=-torch.ones(6, dtype=torch.float64))
    policy = make_policy(batch, log_ratio=0.0)
    assert not OPSM(policy, batch).metrics["masked"].any()
    engine = (batch.logp_old + 0.2).index_fill(0, torch.tensor([5]), torch.nan)  # the last response's are not known
    masked = OPSM(policy, replace(batch, logp_engine=engine)).metrics["masked"][:, 0]
    assert masked.tolist() == [1, 1, 1, 1, 1, 0]
