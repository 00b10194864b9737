"""Advantages by hand, against a float64 loop over groups, and against the exact expected gradient they stand for."""

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr.metrics import pass_at_k, weight_maxrl
from rlvr.objective import advantage as advantages
from rlvr.objective.advantage import (
    PassForm,
    differential_smoothing,
    dr_grpo,
    grpo,
    pkpo,
    reinforce,
    reinforce_pp,
    rloo,
)
from rlvr.objective.batch import Advantage


def grpo_unbiased(reward: Tensor, group: Tensor) -> Tensor:
    return grpo(reward, group, population=False)


def grpo_population(reward: Tensor, group: Tensor) -> Tensor:
    return grpo(reward, group, population=True)


def maxrl(reward: Tensor, group: Tensor) -> Tensor:
    return advantages.maxrl(reward, group, order=None)


ALL: list[Advantage] = [grpo_unbiased, grpo_population, rloo, dr_grpo, maxrl, reinforce]

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


@pytest.mark.parametrize("advantage", [grpo_unbiased, grpo_population, rloo, dr_grpo])
def test_equal_rewards_give_exactly_zero(advantage: Advantage) -> None:
    """The mean of ten 0.1 is not 0.1 in floating point, and ±1e-17 has a sign."""
    for dtype in (torch.float32, torch.float64):
        got = advantage(torch.full((10,), 0.1, dtype=dtype), torch.zeros(10, dtype=torch.int64))
        assert got.dtype == dtype
        assert (got == 0).all()


def test_what_is_added_to_the_deviation_counts_where_graded_rewards_are_close() -> None:
    """Rewards ½ and ½ + 2e-4: centred ∓1e-4, std √2·1e-4. TRL adds 1e-4, which leaves 1/(√2 + 1) of 1/√2."""
    reward, group = torch.tensor([0.5, 0.5002], dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    for epsilon, expected in (
        (None, 1 / (math.sqrt(2) + 0.01)),
        (1e-6, 1 / (math.sqrt(2) + 0.01)),
        (1e-4, 1 / 2.414214),
    ):
        got = grpo(reward, group, population=False, epsilon=epsilon)
        assert got.tolist() == pytest.approx([-expected, expected], rel=1e-6)


def smoothed(reward: Tensor, group: Tensor) -> Tensor:
    one = torch.ones(len(reward), 1)
    return differential_smoothing(reward, group, mask=one.bool(), logp_old=0 * one, gamma_pos=0.05, gamma_neg=0.05)


def test_rewards_that_are_not_binary_are_refused_where_others_have_no_meaning() -> None:
    forms = (advantages.maxrl_conditional, advantages.maxrl_control_variate)
    for advantage in (maxrl, *forms, smoothed):
        for reward in (0.5, -1.0, 2.0, math.nan):
            with pytest.raises(ValueError, match="rewards 0 and 1 only"):
                advantage(torch.tensor([0.0, reward]), torch.zeros(2, dtype=torch.int64))


def test_an_empty_batch_is_no_error() -> None:
    for advantage in ALL:
        assert advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def expected_weight(advantage: Advantage, p: float, G: int) -> float:
    """w(p) in E[1/G Σ A_i ∇log π(y_i)] = w(p) ∇p, by enumerating all 2^G outcomes of G samples that succeed with p.

    ∇log π of a success is ∇p/p and of a failure −∇p/(1 − p). One enumerated outcome is one group."""
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


@pytest.mark.parametrize("p", [0.001, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("G", [1, 2, 4, 8])
def test_the_other_forms_of_maxrl_have_order_g(p: float, G: int) -> None:
    """Theorem 4.2 of MaxRL: Eq. 6 estimates the expansion to order N = G without bias; so does Eq. 7 as it stands."""
    series = sum((1 - p) ** (k - 1) for k in range(1, G + 1))
    assert expected_weight(advantages.maxrl_conditional, p, G) == pytest.approx(series, rel=1e-12)
    assert expected_weight(advantages.maxrl_control_variate, p, G) == pytest.approx(series, rel=1e-9)


@pytest.mark.parametrize(
    ("advantage", "by_hand"),
    [
        # Groups (1, 0, 0, 0), (1, 1), (0): means ¼, 1, 0. 1/K of each success, times G: 4, 1; nothing where K = 0.
        (advantages.maxrl_conditional, [4.0, 0, 0, 0, 1, 1, 0]),
        (advantages.maxrl_control_variate, [3.0, -1, -1, -1, 0, 0, -1]),
    ],
)
def test_the_other_forms_of_maxrl_by_hand(advantage: Advantage, by_hand: list[float]) -> None:
    assert advantage(torch.tensor(REWARD), torch.tensor(GROUP)).tolist() == pytest.approx(by_hand)


@pytest.mark.parametrize("p", [0.001, 0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("order", [1, 2, 5, 7])
def test_truncated_maxrl_has_exactly_the_weight_of_its_order(p: float, order: int) -> None:
    def truncated(reward: Tensor, group: Tensor) -> Tensor:
        return advantages.maxrl(reward, group, order=order)

    if p < 1:
        assert expected_weight(truncated, p, 8) == pytest.approx((1 - (1 - p) ** order) / p, rel=1e-9)
        assert expected_weight(truncated, p, 8) == pytest.approx(float(weight_maxrl(p, order)), rel=1e-9)
    else:  # a group of successes teaches nothing
        assert (truncated(torch.ones(8), torch.zeros(8, dtype=torch.int64)) == 0).all()


def test_truncated_maxrl_by_hand() -> None:
    """One success in 4, order 2. The success: 4·[C(3,0)/(1·4) + C(3,1)/(2·6)] = 4·(¼ + ¼) = 2, others' pass@2 0.
    A failure: others have 1 success in 3, pass@2 = 1 − C(2,2)/C(3,2) = ⅔."""
    got = advantages.maxrl(torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), order=2)
    torch.testing.assert_close(got, torch.tensor([-2 / 3, 2, -2 / 3, -2 / 3]))


@given(correct=st.lists(st.booleans(), min_size=3, max_size=9), data=st.data())
def test_truncated_maxrl_lies_between_rloo_and_maxrl_and_sums_to_zero(correct: list[bool], data: st.DataObject) -> None:
    reward, group = torch.tensor(correct, dtype=torch.float64), torch.zeros(len(correct), dtype=torch.int64)

    def truncated(order: int) -> Tensor:
        return advantages.maxrl(reward, group, order=order)

    torch.testing.assert_close(truncated(1), rloo(reward, group), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(truncated(len(correct) - 1), maxrl(reward, group), rtol=1e-4, atol=1e-9)
    assert truncated(data.draw(st.integers(1, len(correct) - 1))).sum().abs() < 1e-9


def test_reinforce_pp_whitens_over_the_batch() -> None:
    """R = (1, 0, 0, 3): mean 1, Σ(R − 1)² = 0 + 1 + 1 + 4 = 6, std √(6/3) = √2, whatever the groups."""
    for group in ([0, 0, 1, 1], [0, 1, 2, 3]):
        got = reinforce_pp(torch.tensor([1.0, 0, 0, 3]), torch.tensor(group))
        torch.testing.assert_close(got, torch.tensor([0, -1, -1, 2]) / math.sqrt(2), rtol=1e-5, atol=0)
    assert (reinforce_pp(torch.full((10,), 0.1), torch.arange(10)) == 0).all()


FORMS: tuple[PassForm, ...] = ("plain", "sloo", "sloo_minus_one")


def pkpo_loop(R: list[float], k: int, form: PassForm) -> list[float]:
    """Every subset of k, by the definition."""
    rows = range(len(R))

    def plain(i: int, members: list[int]) -> float:
        subsets = [S for S in itertools.combinations(members, k) if i in S]
        return sum(max(R[j] for j in S) for S in subsets) / math.comb(len(members), k)

    if form == "plain":
        return [plain(i, list(rows)) for i in rows]
    if form == "sloo":
        others = [[j for j in rows if j != i] for i in rows]
        return [plain(i, list(rows)) - statistics.fmean(plain(j, others[i]) for j in others[i]) for i in rows]
    gains = [
        [max(R[j] for j in S) - max(R[j] for j in S if j != i) for S in itertools.combinations(rows, k) if i in S]
        for i in rows
    ]
    return [sum(gain) / math.comb(len(R), k) for gain in gains]


@pytest.mark.parametrize("form", FORMS)
@given(
    groups=st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0]), min_size=5, max_size=7), max_size=3),
    k=st.integers(2, 4),
    data=st.data(),
)
def test_pkpo_agrees_with_the_sum_over_subsets(
    form: PassForm, groups: list[list[float]], k: int, data: st.DataObject
) -> None:
    rows = [(R, g, s) for g, group in enumerate(groups) for R, s in zip(group, pkpo_loop(group, k, form), strict=True)]
    rows = data.draw(st.permutations(rows))
    reward, group = (torch.tensor([row[i] for row in rows], dtype=t) for i, t in ((0, torch.float64), (1, torch.int64)))
    for over in ("sum", "mean"):
        got = pkpo(reward, group, k=k, form=form, over=over)
        sizes = torch.tensor([float(len(groups[g])) if over == "mean" else 1.0 for _, g, _ in rows])
        expected = torch.tensor([s for _, _, s in rows], dtype=torch.float64) * sizes
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(4, 2), (8, 3), (16, 16), (128, 64)])
def test_pkpo_of_binary_rewards_is_the_closed_form(n: int, k: int) -> None:
    for c in (0, 1, n // 3, n):
        reward = (torch.arange(n) < c).double()
        got = pkpo(reward, torch.zeros(n, dtype=torch.int64), k=k, form="sloo_minus_one", over="sum")
        expected = math.comb(n - c, k - 1) / math.comb(n, k)
        assert (got[c:] == 0).all()  # not even a rounding error
        torch.testing.assert_close(got[:c], torch.full((c,), expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
        # each subset with a single success is that success's: Σ_i = C(c, 1)·C(n − c, k − 1)/C(n, k)
        plain = pkpo(reward, torch.zeros(n, dtype=torch.int64), k=k, form="plain", over="sum")
        assert plain.sum().item() == pytest.approx(k * float(pass_at_k(n, c, k)), rel=1e-9)


def test_pkpo_by_hand() -> None:
    """Rewards (1, 0, 3), k = 2: the pairs are worth 1, 3, 3 (without 3, 0, 1 in turn), C(3, 2) = 3.

    plain: (1 + 3)/3, (1 + 3)/3, (3 + 3)/3. sloo subtracts the single pair of the others, divided by C(2, 2) = 1:
    3, 3, 1. sloo_minus_one subtracts the others' rewards: (4 − 0 − 3)/3, (4 − 1 − 3)/3, (6 − 1 − 0)/3."""
    expected = {"plain": [4 / 3, 4 / 3, 2], "sloo": [-5 / 3, -5 / 3, 1], "sloo_minus_one": [1 / 3, 0, 5 / 3]}
    for form in FORMS:
        got = pkpo(torch.tensor([1.0, 0, 3]), torch.zeros(3, dtype=torch.int64), k=2, form=form, over="sum")
        torch.testing.assert_close(got, torch.tensor(expected[form]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_expected_gradient_of_pkpo_is_that_of_pass_at_k(form: PassForm, p: float, k: int) -> None:
    """∇ pass@k = ∇[1 − (1 − p)^k] = k(1 − p)^{k−1}∇p."""

    def of_k(reward: Tensor, group: Tensor) -> Tensor:
        return pkpo(reward, group, k=k, form=form, over="mean")

    assert expected_weight(of_k, p, 6) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


def test_pkpo_at_k_1_is_reinforce_and_sloo_has_its_gradient() -> None:
    reward, group = torch.tensor([1.0, 0, 0.5, 1]), torch.zeros(4, dtype=torch.int64)
    torch.testing.assert_close(pkpo(reward, group, k=1, form="plain", over="mean"), reward)

    def sloo(reward: Tensor, group: Tensor) -> Tensor:
        return pkpo(reward, group, k=1, form="sloo", over="mean")

    assert expected_weight(sloo, 0.3, 5) == pytest.approx(1, rel=1e-12)


def test_orders_and_sizes_that_a_group_cannot_estimate_are_refused() -> None:
    group = torch.zeros(4, dtype=torch.int64)
    for k, form in ((5, "plain"), (4, "sloo"), (1, "sloo_minus_one"), (0, "plain")):
        with pytest.raises(ValueError, match=rf"advantage.k={k} with groups of 4"):
            pkpo(torch.zeros(4), group, k=k, form=form, over="mean")  # type: ignore[arg-type]
    for order in (0, 4, 9):
        with pytest.raises(ValueError, match=r"orders are 1 to rollout.samples − 1"):
            advantages.maxrl(torch.tensor([1.0, 0, 0, 0]), group, order=order)


def test_differential_smoothing_by_hand() -> None:
    """Rewards (1, 0): mean ½, population std ½: ±1. l̄ = (−1 − 3)/2 = −2 and −4; γ = 0.1 and 0.05.

    1 + 0.1·2 = 1.2; −1 − 0.05·4 = −1.2. A group of right answers keeps 0 + 0.1·2."""
    logp = torch.tensor([[-1.0, -3.0], [-4.0, math.nan], [-2.0, math.nan], [math.nan, math.nan]])
    mask = torch.tensor([[True, True], [True, False], [True, False], [False, False]])
    knobs = {"mask": mask, "logp_old": logp, "gamma_pos": 0.1, "gamma_neg": 0.05}
    got = differential_smoothing(torch.tensor([1.0, 0, 1, 1]), torch.tensor([0, 0, 1, 1]), **knobs)
    torch.testing.assert_close(got, torch.tensor([1.2, -1.2, 0.2, 0.0]), rtol=1e-5, atol=1e-6)


@given(rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 3), st.integers(0, 4)), min_size=1))
def test_differential_smoothing_agrees_with_a_plain_loop(rows: list[tuple[float, int, int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(len(rows), 4, generator=generator, dtype=torch.float64)
    reward, group, length = (list(x) for x in zip(*rows, strict=True))
    knobs = {"mask": torch.arange(4) < torch.tensor(length)[:, None], "logp_old": logp}
    rewards = torch.tensor(reward, dtype=torch.float64)
    got = differential_smoothing(rewards, torch.tensor(group), **knobs, gamma_pos=0.3, gamma_neg=0.2)
    for b, value in enumerate(got.tolist()):
        members = [r for r, g in zip(reward, group, strict=True) if g == group[b]]
        mean = sum(logp[b, : length[b]].tolist()) / max(length[b], 1)
        smoothing = -0.3 * mean if reward[b] else 0.2 * mean
        base = (reward[b] - statistics.fmean(members)) / (statistics.pstdev(members) + 1e-6)
        assert value == pytest.approx(base + smoothing, rel=1e-9, abs=1e-9)
