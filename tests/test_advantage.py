"""Advantages by hand, against a float64 loop over groups, and against the exact expected gradient they stand for."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr.advantage import dr_grpo, grpo, maxrl, reinforce, rloo
from rlvr.batch import Advantage


def grpo_unbiased(reward: Tensor, group: Tensor) -> Tensor:
    return grpo(reward, group, population=False)


def grpo_population(reward: Tensor, group: Tensor) -> Tensor:
    return grpo(reward, group, population=True)


ALL: list[Advantage] = [grpo_unbiased, grpo_population, rloo, dr_grpo, maxrl, reinforce]
CENTRED: list[Advantage] = ALL[:-1]

REWARD = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
GROUP = [0, 0, 0, 0, 1, 1, 2]
# Group 0: mean 1/4, Σ(R − mean)² = 9/16 + 3/16 = 3/4, std √(3/4 / 3) = 1/2 (population √(3/4 / 4) = 0.433013).
# Group 1 is all right, group 2 a single wrong answer: 0 everywhere but in reinforce.
BY_HAND: dict[Advantage, list[float]] = {
    grpo_unbiased: [1.5, -0.5, -0.5, -0.5, 0, 0, 0],  # ¾ / ½, −¼ / ½
    grpo_population: [1.732051, -0.577350, -0.577350, -0.577350, 0, 0, 0],  # ¾ / 0.433013, −¼ / 0.433013
    rloo: [1.0, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0],  # 1 − 0, 0 − 1/3
    dr_grpo: [0.75, -0.25, -0.25, -0.25, 0, 0, 0],
    maxrl: [3.0, -1.0, -1.0, -1.0, 0, 0, 0],  # ¾ / ¼, −¼ / ¼
    reinforce: REWARD,
}


@pytest.mark.parametrize("advantage", ALL)
def test_numbers_worked_by_hand(advantage: Advantage) -> None:
    got = advantage(torch.tensor(REWARD), torch.tensor(GROUP))
    torch.testing.assert_close(got, torch.tensor(BY_HAND[advantage]), rtol=1e-5, atol=1e-7)  # 1e-6 in the divisor


LOOPS: dict[Advantage, Callable[[list[float], int], float]] = {
    grpo_unbiased: lambda R, i: (R[i] - statistics.fmean(R)) / (statistics.stdev(R) + 1e-6) if len(R) > 1 else 0.0,
    grpo_population: lambda R, i: (R[i] - statistics.fmean(R)) / (statistics.pstdev(R) + 1e-6),
    rloo: lambda R, i: R[i] - statistics.fmean(R[:i] + R[i + 1 :]) if len(R) > 1 else 0.0,
    dr_grpo: lambda R, i: R[i] - statistics.fmean(R),
    reinforce: lambda R, i: R[i],
}
rows = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 3.0]), st.integers(0, 4)), min_size=1)


@pytest.mark.parametrize("advantage", list(LOOPS))
@given(rows=rows)
def test_agrees_with_a_plain_loop_for_groups_of_any_size_in_any_order(
    advantage: Advantage, rows: list[tuple[float, int]]
) -> None:
    reward, group = zip(*rows, strict=True)
    got = advantage(torch.tensor(reward, dtype=torch.float64), torch.tensor(group))
    for b, value in enumerate(got.tolist()):
        members = [i for i, g in enumerate(group) if g == group[b]]
        expected = LOOPS[advantage]([reward[i] for i in members], members.index(b))
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("advantage", CENTRED)
@given(correct=st.lists(st.booleans(), min_size=2, max_size=8))
def test_sums_to_zero_over_a_group(advantage: Advantage, correct: list[bool]) -> None:
    reward = torch.tensor(correct, dtype=torch.float64)
    assert advantage(reward, torch.zeros(len(correct), dtype=torch.int64)).sum().abs() < 1e-9


@pytest.mark.parametrize("advantage", [grpo_unbiased, grpo_population, rloo, dr_grpo])
def test_equal_rewards_give_exactly_zero(advantage: Advantage) -> None:
    """The mean of ten 0.1 is not 0.1 in floating point, and ±1e-17 has a sign."""
    for dtype in (torch.float32, torch.float64):
        got = advantage(torch.full((10,), 0.1, dtype=dtype), torch.zeros(10, dtype=torch.int64))
        assert got.dtype == dtype
        assert (got == 0).all()


def test_maxrl_is_zero_without_a_success() -> None:
    assert (maxrl(torch.zeros(4), torch.zeros(4, dtype=torch.int64)) == 0).all()


@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0, math.nan])
def test_maxrl_refuses_rewards_that_are_not_binary(reward: float) -> None:
    with pytest.raises(ValueError, match=r"rewards 0 and 1 only"):
        maxrl(torch.tensor([0.0, reward]), torch.zeros(2, dtype=torch.int64))


def test_an_empty_batch_is_no_error() -> None:
    for advantage in ALL:
        assert advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def expected_weight(advantage: Advantage, p: float, G: int) -> float:
    """w(p) in E[1/G Σ A_i ∇log π(y_i)] = w(p) ∇p, by enumerating all 2^G outcomes of G samples that succeed with p.

    ∇log π of a success is ∇p/p and of a failure −∇p/(1 − p). One enumerated outcome is one group.
    """
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=G)), dtype=torch.float64)
    group = torch.arange(len(outcomes)).repeat_interleave(G)
    A = advantage(outcomes.reshape(-1), group).reshape(outcomes.shape)
    probability = (outcomes * p + (1 - outcomes) * (1 - p)).prod(1)
    score = outcomes / p - (1 - outcomes) / (1 - p)
    return float((probability * (A * score).mean(1)).sum())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("G", [2, 4, 8])
def test_expected_gradient_is_the_population_weight_times_the_gradient_of_p(p: float, G: int) -> None:
    assert expected_weight(reinforce, p, G) == pytest.approx(1, rel=1e-12)
    assert expected_weight(rloo, p, G) == pytest.approx(1, rel=1e-12)
    assert expected_weight(dr_grpo, p, G) == pytest.approx(1 - 1 / G, rel=1e-12)
    # Maclaurin series of log p, truncated at order G − 1: Σ_{k<G} (1 − p)^{k−1} (1e-6 in the divisor costs ≤ G·1e-6)
    assert expected_weight(maxrl, p, G) == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, G)), rel=1e-5)


def test_expected_gradient_of_grpo_tends_to_one_over_the_deviation() -> None:
    """w(p) → 1/√(p(1 − p)) as G grows; with G = 14 samples at p = ½ within 5 %, and from below."""
    assert 1.9 < expected_weight(grpo_population, 0.5, 14) < 2.0
