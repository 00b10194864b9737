"""Advantages that read lengths, other groups or the whole batch: by hand, against float64 loops, and their laws."""

import math
import statistics
from itertools import combinations

import pytest
import torch

from rlvr.objective.advantage import (
    batch_std,
    dr_grpo,
    gpg,
    grpo,
    opo,
    passk,
    pkpo,
    reinforce_pp_baseline,
    rloo,
    shrinkage,
    signed,
)

REWARD = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0.0], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
GROUPS = {0: [1.0, 0, 0, 0], 1: [1.0, 1], 2: [1.0, 0]}


def masks(*lengths: int) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_batch_std_by_hand() -> None:
    """Centred: ¾, −¼, −¼, −¼, 0, 0, ½, −½."""
    centred = [0.75, -0.25, -0.25, -0.25, 0, 0, 0.5, -0.5]
    for skip, counted in ((False, centred), (True, centred[:4] + centred[6:])):
        expected = [x / (statistics.stdev(counted) + 1e-6) for x in centred]
        assert batch_std(REWARD, GROUP, skip_equal=skip).tolist() == pytest.approx(expected)


def test_reinforce_pp_baseline_over_responses_and_over_tokens() -> None:
    lengths = (1, 2, 3, 1, 2, 2, 4, 1)
    centred = dr_grpo(REWARD, GROUP).tolist()
    by_response = reinforce_pp_baseline(REWARD, GROUP, mask=masks(*lengths), over="response").tolist()
    assert by_response == pytest.approx([x / (statistics.stdev(centred) + 1e-6) for x in centred])
    tokens = [x for x, n in zip(centred, lengths, strict=True) for _ in range(n)]
    mean, variance = statistics.fmean(tokens), statistics.variance(tokens)
    by_token = reinforce_pp_baseline(REWARD, GROUP, mask=masks(*lengths), over="token").tolist()
    assert by_token == pytest.approx([(x - mean) / math.sqrt(variance + 1e-8) for x in centred])


def test_opo_weighs_by_length() -> None:
    """Group 0: Σ nR/Σ n = 3/10; groups of equal rewards are exactly 0, and one without tokens has the mean."""
    advantage = opo(REWARD, GROUP, mask=masks(3, 2, 4, 1, 2, 5, 0, 0))
    assert advantage.tolist() == pytest.approx([0.7, -0.3, -0.3, -0.3, 0, 0, 0.5, -0.5])
    assert advantage[4:6].tolist() == [0, 0]


def test_shrinkage_agrees_with_a_loop_and_is_rloo_for_one_group() -> None:
    got = shrinkage(REWARD, GROUP).tolist()
    expected: list[float] = []
    for g, rewards in GROUPS.items():
        others = [GROUPS[h] for h in GROUPS if h != g]
        means = [statistics.fmean(R) for R in others]
        m = statistics.fmean(means)
        v = statistics.fmean([statistics.variance(R) / len(R) for R in others])
        weight = v / (v + statistics.fmean([(x - m) ** 2 for x in means]) + 1e-6)
        for i, reward in enumerate(rewards):
            rest = statistics.fmean(rewards[:i] + rewards[i + 1 :])
            expected.append(reward - (1 - weight) * rest - weight * m)
    assert got == pytest.approx(expected)
    assert torch.equal(shrinkage(REWARD[:4], GROUP[:4]), rloo(REWARD[:4], GROUP[:4]))
    assert torch.equal(shrinkage(REWARD, 2 * GROUP + 1), shrinkage(REWARD, GROUP))  # numbers that no group has


def test_gpg_scales_by_the_share_of_groups_that_teach() -> None:
    assert gpg(REWARD, GROUP).tolist() == pytest.approx((dr_grpo(REWARD, GROUP) * 8 / 6).tolist())
    assert not gpg(torch.ones(4), torch.tensor([0, 0, 1, 1])).any()


def test_signed_takes_binary_rewards_alone() -> None:
    assert signed(REWARD, GROUP, right=0.1, wrong=1.0).tolist() == pytest.approx([0.1, -1, -1, -1, 0.1, 0.1, 0.1, -1])
    with pytest.raises(ValueError, match="advantage=signed got the reward 0.5"):
        signed(REWARD / 2, GROUP, right=0.1, wrong=1.0)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("num_right", [0, 1, 2, 4, 5])
def test_passk_is_the_mean_over_all_subsets_that_contain_a_response(k: int, num_right: int) -> None:
    """The reward of a subset of k is its best; standardised by the population of subsets (arXiv:2508.10751)."""
    rewards = [1.0] * num_right + [0.0] * (5 - num_right)
    best = {subset: max(rewards[i] for i in subset) for subset in combinations(range(5), k)}
    mean, std = statistics.fmean(best.values()), statistics.pstdev(best.values())
    of_response = [statistics.fmean([x for subset, x in best.items() if i in subset]) for i in range(5)]
    expected = [(x - mean) / (std + 1e-6) if std else 0.0 for x in of_response]
    got = passk(torch.tensor(rewards, dtype=torch.float64), torch.zeros(5, dtype=torch.int64), k=k)
    assert (got.tolist(), got.sum().item()) == (pytest.approx(expected, abs=1e-12), pytest.approx(0, abs=1e-12))


def test_passk_with_one_answer_is_grpo_and_with_several_is_pkpo_centred() -> None:
    reward, group = REWARD[:4], GROUP[:4]
    torch.testing.assert_close(passk(reward, group, k=1), grpo(reward, group, population=True), rtol=1e-5, atol=0)
    plain = pkpo(reward, group, k=2, form="plain", over="mean") / 2
    deviation = math.sqrt(0.5 * 0.5)  # ρ = 1 − C(3, 2)/C(4, 2) = ½
    torch.testing.assert_close(passk(reward, group, k=2), (plain - plain.mean()) / (deviation + 1e-6))
    with pytest.raises(ValueError, match=r"advantage\.k=3 with groups of 2: k is 1 to 2"):
        passk(REWARD, GROUP, k=3)
