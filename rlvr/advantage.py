"""Rewards to advantages, within groups of responses to one prompt.

Every function takes reward [B] and group [B] (int64 ≥ 0, small: a row number; any order, any group sizes) and returns
the advantage [B] in the reward's dtype. Sums are float64. A group whose rewards are all equal, and so a group of one,
has advantage exactly 0 wherever a mean is subtracted: a rounding error of 1e-17 has a sign, and LAD's tv follows signs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo(reward: Tensor, group: Tensor, *, population: bool) -> Tensor:
    """(R − mean)/(std + 1e-6) (GRPO, arXiv:2402.03300). population: divide the variance by G, not by G − 1."""
    of = _groups(reward, group)
    divisor = of.size if population else (of.size - 1).clamp(min=1)
    deviation = (_sum(of.centred.square(), group) / divisor).sqrt()
    return (of.centred / (deviation + EPSILON)).to(reward.dtype)


def rloo(reward: Tensor, group: Tensor) -> Tensor:
    """R_i − mean of the other rewards of its group = G/(G − 1)·(R_i − mean) (RLOO, arXiv:2402.14740)."""
    of = _groups(reward, group)
    return (of.centred * of.size / (of.size - 1).clamp(min=1)).to(reward.dtype)


def dr_grpo(reward: Tensor, group: Tensor) -> Tensor:
    """R − mean (Dr. GRPO, arXiv:2503.20783). Its expected gradient is 1 − 1/G of the true one."""
    return _groups(reward, group).centred.to(reward.dtype)


def maxrl(reward: Tensor, group: Tensor) -> Tensor:
    """(R − mean)/(mean + 1e-6), and 0 in a group without success (MaxRL, arXiv:2602.02710).

    Rewards must be 0 or 1, else ValueError. The expected gradient is that of the log-likelihood's expansion to order
    T = G − 1, with population weight (1 − (1 − p)^T)/p. (The paper's order G is that of the estimator without
    the baseline.)
    """
    strange = reward[(reward != 0) & (reward != 1)]
    if strange.numel():
        raise ValueError(
            f"advantage=maxrl got the reward {strange[0].item():g}. It takes rewards 0 and 1 only. "
            "Pass advantage=grpo, rloo or dr_grpo, or a task with binary rewards."
        )
    of = _groups(reward, group)
    return (of.centred / (of.mean + EPSILON)).to(reward.dtype)


def reinforce(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001
    """R, without a baseline (Williams 1992)."""
    return reward


class _Groups(NamedTuple):
    """What each row's group says, [B] float64."""

    size: Tensor
    mean: Tensor
    centred: Tensor  # R − mean; exactly 0 where the rewards of the group are equal


def _groups(reward: Tensor, group: Tensor) -> _Groups:
    R = reward.double()
    size = _sum(torch.ones_like(R), group)
    mean = _sum(R, group) / size
    extremes = R.new_zeros(_num_groups(group))
    low, high = (extremes.scatter_reduce(0, group, R, way, include_self=False)[group] for way in ("amin", "amax"))
    return _Groups(size, mean, torch.where(low == high, 0.0, R - mean))


def _sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum of each row's group, [B]."""
    return x.new_zeros(_num_groups(group)).index_add(0, group, x)[group]


def _num_groups(group: Tensor) -> int:
    return int(group.max()) + 1 if group.numel() else 0
