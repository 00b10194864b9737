from dataclasses import replace
from functools import partial

import pytest
import torch

from rlvr.loss.grpo import grpo
from rlvr.loss.high_entropy import high_entropy, kept
from rlvr.objective.batch import Policy
from tests.loss.by_hand import gradient
from tests.support.factories import make_batch, make_policy, one_token_batch

SURROGATE = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
LOSS = partial(high_entropy, fraction=0.5, **SURROGATE)


@pytest.mark.parametrize(
    ("fraction", "chosen"),
    [
        (0.2, [4, 5]),  # place 0.8·5 = 4 of 0 to 5: the value 4, and what is above it
        (0.3, [4, 5]),  # place 3.5: 3.5
        (0.0, [5]),
        (1.0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_choice_by_hand(fraction: float, chosen: list[int]) -> None:
    batch = one_token_batch(6)
    policy = Policy(batch.logp_old, entropy=torch.arange(6.0).double()[:, None])
    assert kept(policy, batch, fraction=fraction).flatten().nonzero().flatten().tolist() == chosen


def test_ties_are_kept_and_rounding_drops_none() -> None:
    """0.8·15 is 12.000000000000002 as a product of floats: the thirteenth value itself must not fall below it."""
    batch = one_token_batch(16)
    entropy = torch.tensor([0.1] * 12 + [0.7] * 4, dtype=torch.float32)[:, None]
    assert int(kept(Policy(batch.logp_old, entropy=entropy), batch, fraction=0.2).sum()) == 4


def test_other_tokens_have_no_loss_and_no_gradient() -> None:
    batch = make_batch(num_groups=4, dtype=torch.float64)
    policy = make_policy(batch)
    assert policy.entropy is not None
    is_kept = kept(policy, batch, fraction=0.5)
    values = sorted(policy.entropy[batch.mask].tolist())
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    assert torch.equal(is_kept, batch.mask & (policy.entropy >= middle))
    terms = LOSS(policy, replace(batch, extra=is_kept))
    assert torch.equal(terms.loss, torch.where(is_kept, grpo(policy, batch, **SURROGATE).loss, 0.0))
    assert not gradient(terms, policy)[~is_kept].any()
