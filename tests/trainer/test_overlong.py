"""The soft penalty by hand, and the tokens that the filter leaves out of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from rlvr.objective.advantage import rloo
from rlvr.records import Completion, Problem, Reward, Rollout
from rlvr.trainer.collate import collate
from rlvr.trainer.overlong import penalised, penalty, without_cut


def group(*lengths: int, max_tokens: int = 10) -> Rollout:
    completions = tuple(
        Completion(np.ones(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32), n < max_tokens)
        for n in lengths
    )
    rewards = tuple(Reward(float(i == 0), "correct" if i == 0 else "wrong") for i in range(len(lengths)))
    return Rollout(Problem("p", "1"), np.ones(2, np.int64), completions, ("",) * len(lengths), rewards)


@pytest.mark.parametrize(("length", "expected"), [(1, 0), (6, 0), (7, -0.5), (8, -1), (10, -2)])
def test_penalty_by_hand(length: int, expected: float) -> None:
    """L_max 10, buffer 4, factor 2: free up to 6 tokens, then half a unit a token."""
    assert penalty(length, max_tokens=10, buffer=4, factor=2.0) == expected


def test_rewards_lose_the_penalty_and_keep_their_outcome() -> None:
    (result,) = penalised([group(10, 3, 8)], max_tokens=10, buffer=4, factor=1.0)
    assert [r.value for r in result.rewards] == [0.0, 0.0, -0.5]
    assert [r.outcome for r in result.rewards] == ["correct", "wrong", "wrong"]


@pytest.mark.parametrize(("buffer", "values"), [(0.4, [0.5, 0.0, -0.25]), (1, [0.5, 0.0, 0.0])])
def test_a_buffer_below_one_is_a_share_of_the_longest_response(buffer: float, values: list[float]) -> None:
    """0.4 of 10 tokens is a buffer of 4; 1 is one token."""
    (result,) = penalised([group(10, 3, 8)], max_tokens=10, buffer=buffer, factor=0.5)
    assert [r.value for r in result.rewards] == values


def test_advantages_are_of_the_penalised_rewards() -> None:
    rollouts = penalised([group(10, 3, 8)], max_tokens=10, buffer=4, factor=1.0)
    # Rewards 0, 0, −½: each less the mean of the other two.
    assert collate(rollouts, rloo, pad_token_id=0).advantage.tolist() == pytest.approx([0.25, 0.25, -0.5])


def test_cut_responses_keep_their_part_in_the_advantages_and_lose_their_tokens() -> None:
    rollouts = [group(10, 3), group(9, 10)]
    whole = collate(rollouts, rloo, pad_token_id=0)
    batch = without_cut(whole, rollouts)
    assert batch.mask.sum(1).tolist() == [0, 3, 9, 0]
    assert batch.advantage.tolist() == [1, -1, 1, -1]


def test_a_step_of_cut_responses_is_refused() -> None:
    with pytest.raises(ValueError, match="all 2 responses of a step were cut"):
        without_cut(collate([group(10, 10)], rloo, pad_token_id=0), [group(10, 10)])
