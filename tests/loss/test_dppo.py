import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.loss.dppo import dppo
from rlvr.objective.batch import Batch, Policy
from tests.loss.by_hand import column, gradient
from tests.support.factories import make_batch, make_policy, one_token_batch

KNOBS: dict[str, Any] = {"region": "tv", "delta_low": 0.2, "delta_high": 0.2, "cap": None, "quadratic": 0.0}


def case(p: list[float], q: list[float], advantage: list[float]) -> tuple[Batch, Policy]:
    batch = one_token_batch(len(p), advantage=column(advantage)[:, 0], logp_old=column(q).log())
    return batch, make_policy(batch, log_ratio=column(p).log() - column(q).log())


def test_dropped_tokens_by_hand() -> None:
    """p − q: 0.25, −0.25, 0.25, −0.25, 0.1: beyond 0.2 are the first four, and only moves in the advantage's direction,
    away from q, are dropped: the first (A > 0, risen) and the fourth (A < 0, fallen)."""
    p, q = [0.5, 0.25, 0.5, 0.25, 0.3], [0.25, 0.5, 0.25, 0.5, 0.2]
    batch, policy = case(p, q, [2.0, 2.0, -1.0, -1.0, 2.0])
    terms = dppo(policy, batch, **KNOBS)
    assert terms.metrics["dropped"].flatten().tolist() == [1, 0, 0, 1, 0]
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([0, -2 * 0.5, 1 * 2, 0, -2 * 1.5])  # −A·p/q


def test_a_move_of_exactly_the_bound_is_kept_and_the_weight_is_capped() -> None:
    batch, policy = case([0.75], [0.25], [1.0])  # p − q = 0.5, r = 3
    for high, cap, expected in ((0.5, None, -3.0), (0.5, 2.0, -2.0), (0.49, None, 0.0)):
        terms = dppo(policy, batch, **{**KNOBS, "delta_high": high, "cap": cap})
        assert gradient(terms, policy).item() == pytest.approx(expected)


@pytest.mark.parametrize("region", ["tv", "kl"])
def test_agrees_with_a_plain_loop(region: str) -> None:
    batch = make_batch(num_groups=8, num_samples=4, dtype=torch.float64)
    batch = replace(batch, logp_old=batch.logp_old - 1)  # so that no probability is above 1
    policy = make_policy(batch)
    knobs = {**KNOBS, "region": region, "delta_low": 0.05, "delta_high": 0.03, "quadratic": 0.1}
    terms = dppo(policy, batch, **knobs)
    slope = gradient(terms, policy)
    for b, t in batch.mask.nonzero().tolist():
        A, p, q = batch.advantage[b].item(), math.exp(policy.logp[b, t].item()), math.exp(batch.logp_old[b, t].item())
        distance = abs(p - q)
        if region == "kl":
            distance = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
        gone = (A > 0 and p > q and distance > 0.03) or (A < 0 and p < q and distance > 0.05)
        assert terms.metrics["dropped"][b, t].item() == gone
        assert slope[b, t].item() == pytest.approx(0.2 * math.log(p / q) - (0 if gone else A * p / q), rel=1e-9)
    assert 0 < terms.metrics["dropped"].sum() < batch.mask.sum()
