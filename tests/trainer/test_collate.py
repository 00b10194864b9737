import numpy as np
import pytest
import torch

from rlvr.model.tokenizer import word_tokenizer
from rlvr.objective.advantage import dr_grpo, rloo
from rlvr.objective.batch import Batch, Policy, needs
from rlvr.records import Completion, Problem, Reward, Rollout
from rlvr.trainer.collate import collate, known_answers, penalised, penalty, without_cut
from tests.support.scripted import Echo


def completion(*tokens: int) -> Completion:
    logp = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Completion(np.array(tokens, dtype=np.int64), logp, logp, finished=True)


def rollout(name: str, prompt: list[int], *responses: tuple[list[int], float]) -> Rollout:
    rewards = tuple(Reward(value, "correct" if value else "wrong") for _, value in responses)
    completions = tuple(completion(*tokens) for tokens, _ in responses)
    return Rollout(Problem(name, name), np.array(prompt), completions, ("",) * len(responses), rewards)


def test_prompts_are_left_padded_and_responses_right_padded() -> None:
    groups = [rollout("a", [5, 6, 7], ([1, 2], 1.0), ([3], 0.0)), rollout("b", [8], ([4, 4, 4], 0.0), ([9], 0.0))]
    batch = collate(groups, dr_grpo, pad_token_id=0)
    assert batch.prompt.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert batch.prompt_mask.tolist() == [[True] * 3, [False, False, True]]
    assert batch.tokens.tolist() == [[1, 2, 0], [3, 0, 0], [4, 4, 4], [9, 0, 0]]
    assert batch.mask.sum(1).tolist() == [2, 1, 3, 1]
    assert batch.logp_old.tolist() == [[-1, -2, 0], [-1, 0, 0], [-1, -2, -3], [-1, 0, 0]]
    assert batch.group.tolist() == [0, 0, 1, 1]


def test_advantages_compare_the_responses_of_one_group_only() -> None:
    groups = [rollout("a", [1], ([1], 1.0), ([2], 0.0)), rollout("b", [1], ([1], 1.0), ([2], 1.0))]
    # group a: rewards 1, 0 minus mean ½; group b: rewards 1, 1 minus mean 1
    assert collate(groups, dr_grpo, pad_token_id=0).advantage.tolist() == [0.5, -0.5, 0.0, 0.0]


def test_a_completion_whose_verifier_failed_is_refused() -> None:
    group = rollout("a", [1], ([1], 1.0), ([2], 0.0))
    broken = Rollout(
        group.problem, group.prompt, group.completions, group.texts, (group.rewards[0], Reward(0, "error"))
    )
    with pytest.raises(ValueError, match="verifier failed"):
        collate([broken], dr_grpo, pad_token_id=0)


def test_an_advantage_gets_what_it_declares_and_may_give_returns() -> None:
    @needs("value", "logp_old", "mask")
    def wants(
        reward: torch.Tensor, group: torch.Tensor, mask: torch.Tensor, logp_old: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert mask.tolist() == [[True, True], [True, False]]
        return (reward[:, None] - value) * mask, logp_old + value

    groups = [rollout("a", [1], ([1, 2], 1.0), ([2], 0.0))]
    batch = collate(groups, wants, pad_token_id=0, policy_of=lambda b: Policy(b.logp_old, value=b.logp_old / 4))
    assert batch.advantage.tolist() == [[1.25, 1.5], [0.25, 0.0]]  # values −1/4, −2/4; −1/4
    assert batch.returns is not None
    assert batch.value_old is not None
    assert batch.returns.tolist() == [[-1.25, -2.5], [-1.25, 0.0]]
    assert batch.value_old.tolist() == [[-0.25, -0.5], [-0.25, 0.0]]


def test_an_advantage_that_needs_a_value_head_says_so_where_there_is_none() -> None:
    wants = needs("value")(lambda reward, group, value: reward)
    message = "the advantage needs value, which this run does not compute: a value head comes with"
    with pytest.raises(ValueError, match=message):
        collate([rollout("a", [1], ([1], 1.0))], wants, pad_token_id=0, policy_of=lambda b: Policy(b.logp_old))


def test_an_advantage_of_another_shape_or_that_writes_into_the_rewards_is_named() -> None:
    groups = [rollout("a", [1], ([1, 2], 1.0), ([1], 0.0))]

    def shorter(reward: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return reward[:1]

    def centres(reward: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return reward.sub_(reward.mean())

    with pytest.raises(ValueError, match=r"the advantage .*shorter returned the shape \[1\], not \[2\] or \[2, 2\]"):
        collate(groups, shorter, pad_token_id=0)
    with pytest.raises(ValueError, match=r"centres changes batch\.reward in place"):
        collate(groups, centres, pad_token_id=0)


class Known(Echo):
    def solution(self, problem: Problem) -> str:
        return problem.answer


def test_known_answers_take_the_place_of_samples() -> None:
    """Echo `a b ;`: the answer is `a b .`, the words numbered as in the vocabulary, and `.` ends it."""
    task = Known(length=2)
    tokenizer = word_tokenizer(task.vocabulary, task.end_word)
    problem = Problem("p", "a b ;", "a b .")
    sampled = rollout("p", [1, 2, 7], ([4], 0.0), ([5, 6], 0.0))
    groups = [Rollout(problem, sampled.prompt, sampled.completions, sampled.texts, sampled.rewards)]
    (group,) = known_answers(groups, task, tokenizer, end=tokenizer.eos_token_id, max_tokens=3)
    words = tokenizer.get_vocab()
    assert group.completions[0].tokens.tolist() == [words["a"], words["b"], words["."]]
    assert list(group.rewards) == task.reward([(problem, group.texts[0])])
    policy_logp = torch.tensor([[-1.0, -2.0, -3.0]])
    batches: list[Batch] = []

    def policy_of(batch: Batch) -> Policy:
        batches.append(batch)
        return Policy(policy_logp)

    batch = collate([group], dr_grpo, pad_token_id=0, policy_of=policy_of)
    assert batch.logp_old.tolist() == policy_logp.tolist()  # the policy's own: it did not sample them
    assert batch.tokens.tolist() == batches[0].tokens.tolist()
    with pytest.raises(ValueError, match=r"has 3 tokens and responses have 2 at most: pass rollout.max_tokens=3"):
        known_answers(groups, task, tokenizer, end=tokenizer.eos_token_id, max_tokens=2)


def test_an_end_token_is_added_where_there_is_room() -> None:
    class Open(Known):
        def solution(self, problem: Problem) -> str:
            return "a"

    task = Open(length=2)
    tokenizer = word_tokenizer(task.vocabulary, task.end_word)
    words = tokenizer.get_vocab()
    for room, expected in ((1, ["a"]), (2, ["a", "."])):
        groups = [rollout("p", [1], ([4], 0.0))]
        (group,) = known_answers(groups, task, tokenizer, end=tokenizer.eos_token_id, max_tokens=room)
        assert group.completions[0].tokens.tolist() == [words[w] for w in expected]


# --- responses at or near the limit of length ---


def group(*lengths: int, max_tokens: int = 10) -> Rollout:
    completions = tuple(
        Completion(np.ones(n, np.int64), np.zeros(n, np.float32), np.zeros(n, np.float32), n < max_tokens)
        for n in lengths
    )
    rewards = tuple(Reward(float(i == 0), "correct" if i == 0 else "wrong") for i in range(len(lengths)))
    return Rollout(Problem("p", "1"), np.ones(2, np.int64), completions, ("",) * len(lengths), rewards)


def test_penalty_by_hand() -> None:
    """L_max 10, buffer 4, factor 2: free up to 6 tokens, then half a unit a token."""
    found = [penalty(length, max_tokens=10, buffer=4, factor=2.0) for length in (1, 6, 7, 8, 10)]
    assert found == [0, 0, -0.5, -1, -2]


def test_rewards_lose_the_penalty_and_keep_their_outcome_and_advantages_are_of_them() -> None:
    """A buffer below one is a share of the longest response: 0.4 of 10 tokens is 4; 1 is one token."""
    for buffer, factor, values in ((4, 1.0, [0, 0, -0.5]), (0.4, 0.5, [0.5, 0, -0.25]), (1, 0.5, [0.5, 0, 0])):
        (result,) = penalised([group(10, 3, 8)], max_tokens=10, buffer=buffer, factor=factor)
        assert [r.value for r in result.rewards] == values, buffer
        assert [r.outcome for r in result.rewards] == ["correct", "wrong", "wrong"]
    rollouts = penalised([group(10, 3, 8)], max_tokens=10, buffer=4, factor=1.0)
    # Rewards 0, 0, −½: each less the mean of the other two.
    assert collate(rollouts, rloo, pad_token_id=0).advantage.tolist() == pytest.approx([0.25, 0.25, -0.5])


def test_cut_responses_keep_their_part_in_the_advantages_and_lose_their_tokens() -> None:
    rollouts = [group(10, 3), group(9, 10)]
    whole = collate(rollouts, rloo, pad_token_id=0)
    batch = without_cut(whole, rollouts)
    assert (batch.mask.sum(1).tolist(), batch.advantage.tolist()) == ([0, 3, 9, 0], [1, -1, 1, -1])


def test_a_step_of_cut_responses_is_refused() -> None:
    with pytest.raises(ValueError, match="all 2 responses of a step were cut"):
        without_cut(collate([group(10, 10)], rloo, pad_token_id=0), [group(10, 10)])
