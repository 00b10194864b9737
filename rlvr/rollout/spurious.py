"""Rewards that say nothing, or the wrong thing: `rollout.reward=random|flipped`, the controls of an ablation.

An objective that gains from them gains from something else than being right (Spurious Rewards, arXiv:2506.10947). The
logged accuracy, and every evaluation, are of the true rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr.noise import uniform
from rlvr.records import Outcome, Reward, Rollout, Sampling
from rlvr.rollout.sampler import noise_key

NOISE_STREAM = 1 << 34  # not that of sampling, of evaluation or of samples before training


def trained_on(groups: Sequence[Rollout], kind: str | None, sampling: Sampling) -> list[Rollout]:
    """The groups with the rewards that the step learns from. kind: None, as they are; random: right with chance ½, a
    function of (seed, step, problem, sample); flipped: 1 − reward. What the verifier failed to judge stays so.
    """
    return list(groups) if kind is None else [_replaced(group, kind, sampling) for group in groups]


def _replaced(group: Rollout, kind: str, sampling: Sampling) -> Rollout:
    G = len(group.rewards)
    chance = uniform(sampling.seed + NOISE_STREAM, sampling.step, [noise_key(group.problem)] * G, range(G), 0, 1)[:, 0]
    values = [float(c < 0.5) for c in chance] if kind == "random" else [1 - r.value for r in group.rewards]
    rewards = [
        reward if reward.outcome == "error" else Reward(value, _outcome(reward, value, kind))
        for reward, value in zip(group.rewards, values, strict=True)
    ]
    return replace(group, rewards=tuple(rewards))


def _outcome(reward: Reward, value: float, kind: str) -> Outcome:
    right = value == 1 if kind == "random" else not reward.correct
    return "correct" if right else "wrong"
