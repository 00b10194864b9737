"""Random rewards: half of them right, whatever was answered; flipped ones: 1 minus the true reward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlvr.records import Problem, Reward, Rollout, Sampling
from rlvr.rollout.spurious_rewards import with_training_rewards


def groups(outcomes: list[Any], count: int = 1) -> list[Rollout]:
    rewards = tuple(Reward(float(o == "correct"), o) for o in outcomes)
    texts = ("",) * len(outcomes)
    return [Rollout(Problem(f"p{i}", ""), np.zeros(1, np.int64), (), texts, rewards) for i in range(count)]


AT = Sampling(max_tokens=1, seed=3, step=7)


def test_random_rewards_are_right_half_of_the_time_whatever_the_answer() -> None:
    for outcome in ("correct", "wrong"):
        changed = with_training_rewards(groups([outcome] * 8, 2000), "random", AT)
        share = np.mean([reward.value for group in changed for reward in group.rewards])
        assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(16000))
        assert all(reward.correct == (reward.value == 1) for group in changed for reward in group.rewards)


def test_they_are_a_function_of_seed_step_problem_and_sample() -> None:
    def values(**other: int) -> list[float]:
        sampling = Sampling(**{"max_tokens": 1, "seed": 3, "step": 7, **other})
        return [
            r.value
            for group in with_training_rewards(groups(["wrong"] * 4, 50), "random", sampling)
            for r in group.rewards
        ]

    assert values() == values()
    assert values() != values(step=8)
    assert values() != values(seed=4)
    (alone,) = with_training_rewards(groups(["wrong"] * 4, 50)[-1:], "random", AT)
    assert [r.value for r in alone.rewards] == values()[-4:]  # they do not depend on the batch


def test_flipped_rewards_are_one_minus_the_true_ones() -> None:
    (changed,) = with_training_rewards(groups(["correct", "wrong", "unparsable"]), "flipped", AT)
    assert [(r.value, r.outcome) for r in changed.rewards] == [(0, "wrong"), (1, "correct"), (1, "correct")]


def test_a_failed_verifier_stays_failed() -> None:
    for kind in ("random", "flipped"):
        (changed,) = with_training_rewards(groups(["error"]), kind, AT)
        assert changed.rewards[0].outcome == "error"
    original = groups(["correct", "wrong"])
    assert with_training_rewards(original, None, AT) == original
