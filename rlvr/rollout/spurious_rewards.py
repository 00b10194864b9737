"""Random or inverted rewards, `rollout.reward=random|flipped`: the controls of an ablation.

An objective that gains from such rewards gains from something other than their content (Spurious Rewards,
arXiv:2506.10947). The logged accuracy and every evaluation use the true rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr.noise import uniform
from rlvr.records import Outcome, Reward, Rollout, Sampling
from rlvr.rollout.sampler import noise_key

NOISE_STREAM = 1 << 34  # differs from the streams of sampling, evaluation and pre-sampling


def with_training_rewards(groups: Sequence[Rollout], kind: str | None, sampling: Sampling) -> list[Rollout]:
    """The groups with the rewards that the step learns from. kind: None: the true rewards; random: right with
    probability ½, a function of (seed, step, problem, sample); flipped: 1 − reward. A sample that the verifier
    failed to judge keeps its outcome.
    """
    return list(groups) if kind is None else [_with_spurious_rewards(group, kind, sampling) for group in groups]


def _with_spurious_rewards(group: Rollout, kind: str, sampling: Sampling) -> Rollout:
    G = len(group.rewards)
    noise = uniform(sampling.seed + NOISE_STREAM, sampling.step, [noise_key(group.problem)] * G, range(G), 0, 1)[:, 0]
    values = [float(u < 0.5) for u in noise] if kind == "random" else [1 - reward.value for reward in group.rewards]
    rewards = [
        reward if reward.outcome == "error" else Reward(value, _outcome(reward, value, kind))
        for reward, value in zip(group.rewards, values, strict=True)
    ]
    return replace(group, rewards=tuple(rewards))


def _outcome(reward: Reward, value: float, kind: str) -> Outcome:
    is_correct = value == 1 if kind == "random" else not reward.correct
    return "correct" if is_correct else "wrong"
