import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rlvr.task.bandit import Bandit

CONF = Path(__file__).parents[2] / "conf" / "task" / "bandit.yaml"


def make_bandit(**knobs: Any) -> Bandit:
    return Bandit(**{"arms": 5, "centres": [2], "widths": [1], "heights": [1], **knobs})


def test_reward_is_a_gaussian_of_the_distance_in_widths() -> None:
    # One mode at arm 2: e^(-d²/2) at distances 2, 1, 0, 1, 2.
    expected = [math.exp(-2), math.exp(-0.5), 1, math.exp(-0.5), math.exp(-2)]
    assert make_bandit().rewards() == pytest.approx(expected)
    # Width 2 and any height: e^(-(d/2)²/2), normalised by its maximum.
    expected = [math.exp(-0.5), math.exp(-0.125), 1, math.exp(-0.125), math.exp(-0.5)]
    assert make_bandit(widths=[2], heights=[7]).rewards() == pytest.approx(expected)


def test_mixture_adds_modes_and_its_maximum_is_one() -> None:
    # Modes at 0 (height 1) and 2 (height 3), width 1: arm 0: 1 + 3e^-2, arm 1: e^-.5 + 3e^-.5, arm 2: e^-2 + 3.
    task = make_bandit(arms=3, centres=[0, 2], widths=[1, 1], heights=[1, 3])
    top = math.exp(-2) + 3
    assert task.rewards() == pytest.approx([(1 + 3 * math.exp(-2)) / top, 4 * math.exp(-0.5) / top, 1])


def test_default_has_fifty_arms_and_three_modes() -> None:
    task: Bandit = instantiate(OmegaConf.load(CONF))
    rewards = task.rewards()
    assert (rewards.shape, rewards.max()) == ((50,), 1)
    assert rewards.min() > 0
    peaks = [k for k in range(1, 49) if rewards[k] > max(rewards[k - 1], rewards[k + 1])]
    assert peaks == [10, 25, 40]
    assert rewards[[10, 25, 40]] == pytest.approx([0.9, 1.0, 0.8], abs=1e-3)  # modes far apart: their heights


def test_an_arm_earns_its_reward_and_is_correct_within_one_width_of_a_mode() -> None:
    task = make_bandit(widths=[1.5])
    problem = task.problem("train", 0)
    rewards = task.reward([(problem, arm) for arm in task.arms])
    assert [r.value for r in rewards] == pytest.approx(task.rewards())
    assert [r.outcome for r in rewards] == ["wrong", "correct", "correct", "correct", "wrong"]


def test_both_splits_are_the_one_problem_and_a_response_is_one_word() -> None:
    task = make_bandit()
    assert task.size("train") == task.size("test") == 1
    problem = task.problem("train", 0)
    assert (problem, task.max_tokens) == (task.problem("test", 0), 1)
    assert {problem.prompt, task.end_word, *task.arms} <= set(task.vocabulary)
    assert len(set(task.vocabulary)) == len(task.vocabulary)
    rewards = task.reward([(problem, text) for text in ("", "PULL", "ARM_5", "ARM_1 ARM_2", "END")])
    assert {(r.value, r.outcome) for r in rewards} == {(0.0, "unparsable")}


def test_copies_ask_the_same_under_names_of_their_own() -> None:
    task = make_bandit(copies=3)
    problems = [task.problem("train", i) for i in range(3)]
    assert {p.prompt for p in problems} == {"PULL"}
    assert [p.id for p in problems] == ["bandit", "bandit/1", "bandit/2"]
    with pytest.raises(IndexError, match="0 to 2"):
        task.problem("train", 3)


def test_demonstrations_go_round_the_arms() -> None:
    task = make_bandit()
    counts = np.bincount([task.arms.index(task.demonstration(i)[1]) for i in range(50)])
    assert counts.tolist() == [10] * 5


def test_binary_rewards_are_one_within_one_width_of_a_mode() -> None:
    # Centres 1 and 4 of six arms, widths 1 and 0.5: arms 0, 1, 2 and 4.
    task = make_bandit(arms=6, centres=[1, 4], widths=[1, 0.5], heights=[1, 5], binary=True)
    assert task.rewards().tolist() == [1, 1, 1, 0, 1, 0]
    rewards = task.reward([(task.problem("train", 0), arm) for arm in task.arms])
    assert [r.value for r in rewards] == [1, 1, 1, 0, 1, 0]
    assert [r.outcome for r in rewards] == ["correct", "correct", "correct", "wrong", "correct", "wrong"]
