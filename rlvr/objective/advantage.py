"""Rewards to advantages, within groups of responses to one prompt.

Every function takes reward [B] and group [B] (int64 ≥ 0, small: a row number; any order, any group sizes) and returns
the advantage [B] in the reward's dtype. Sums are float64. A group whose rewards are all equal, and so a group of one,
has advantage exactly 0 wherever a mean is subtracted: a rounding error of 1e-17 has a sign, and LAD's tv follows signs.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Literal, NamedTuple, get_args

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from rlvr.objective.batch import binary_rewards, compares_responses, needs, uses_equal_groups
from rlvr.objective.limits import orders, subset_sizes

EPSILON = 1e-6
WHITENING = 1e-8  # beside a variance, as the reference implementations of PPO have it
PassForm = Literal["plain", "sloo", "sloo_minus_one"]
Over = Literal["mean", "sum"]


@compares_responses
def grpo(reward: Tensor, group: Tensor, *, population: bool) -> Tensor:
    """(R − mean)/(std + 1e-6) (GRPO, arXiv:2402.03300). population: divide the variance by G, not by G − 1."""
    of = _groups(reward, group)
    divisor = of.size if population else (of.size - 1).clamp(min=1)
    deviation = (_sum(of.centred.square(), group) / divisor).sqrt()
    return (of.centred / (deviation + EPSILON)).to(reward.dtype)


@compares_responses
def rloo(reward: Tensor, group: Tensor) -> Tensor:
    """R_i − mean of the other rewards of its group = G/(G − 1)·(R_i − mean) (RLOO, arXiv:2402.14740)."""
    of = _groups(reward, group)
    return (of.centred * of.size / (of.size - 1).clamp(min=1)).to(reward.dtype)


@compares_responses
def dr_grpo(reward: Tensor, group: Tensor) -> Tensor:
    """R − mean (Dr. GRPO, arXiv:2503.20783). Its expected gradient is 1 − 1/G of the true one."""
    return _groups(reward, group).centred.to(reward.dtype)


@binary_rewards
@compares_responses
def maxrl(reward: Tensor, group: Tensor, *, order: PositiveInt | None) -> Tensor:
    """(R − mean)/(mean + 1e-6), and 0 in a group without success (MaxRL, arXiv:2602.02710). Rewards are 0 or 1.

    The expected gradient is that of the log-likelihood's expansion to order T = G − 1, with population weight
    (1 − (1 − p)^T)/p. (The paper's order G is that of `maxrl_conditional` and `maxrl_control_variate`.)

    order: a T from 1 to G − 1 gives that order instead, the truncated Maclaurin estimator. With c successes among G,
    G·R_i·Σ_{k≤T} C(G − c, k − 1)/(k·C(G, k)) estimates the gradient of Σ_k pass@k/k = Σ_k (1 − p)^{k−1}∇p; the baseline
    is pass@T of the other responses, without bias. T = 1 is `rloo` and T = G − 1 is order=None but for the 1e-6.
    Raises ValueError for other rewards and orders.
    """
    _check_binary("maxrl", reward)
    of = _groups(reward, group)
    if order is None:
        return (of.centred / (of.mean + EPSILON)).to(reward.dtype)
    smallest = int(of.size.min()) if len(of.size) else order + 1
    if order not in orders(smallest):
        raise ValueError(
            f"advantage.order={order} with groups of {smallest}: orders are 1 to rollout.samples − 1. "
            f"Pass rollout.samples={max(order, 1) + 1}, a lower advantage.order, or null for the highest."
        )
    R, success = reward.double(), of.mean * of.size
    failure, others = of.size - success, of.size - 1
    term, weight = torch.ones_like(R), torch.zeros_like(R)  # G·C(G − c, k − 1)/(k·C(G, k)) and its sum
    missed = torch.ones_like(R)  # C(failures, T)/C(G − 1, T) of the others
    for k in range(order):
        weight = weight + term
        term = term * (failure - k).clamp(min=0) / (of.size - k - 1).clamp(min=1)
        missed = missed * (failure - (1 - R) - k).clamp(min=0) / (others - k)
    return torch.where(of.centred == 0, 0.0, R * weight - (1 - missed)).to(reward.dtype)


@binary_rewards
@uses_equal_groups
def maxrl_conditional(reward: Tensor, group: Tensor) -> Tensor:
    """R/mean, and 0 in a group without success (MaxRL, arXiv:2602.02710, Eq. 6). Rewards are 0 or 1.

    The average of the scores of the right responses alone. Its expected gradient is of order T = G, with population
    weight (1 − (1 − p)^G)/p; its variance is that of an estimator without baseline, and a group whose rewards are all
    1 has advantage 1.
    """
    _check_binary("maxrl_conditional", reward)
    of = _groups(reward, group)
    R = reward.double()
    return torch.where(R > 0, R / of.mean.clamp(min=torch.finfo(R.dtype).tiny), 0.0).to(reward.dtype)


@binary_rewards
@uses_equal_groups
def maxrl_control_variate(reward: Tensor, group: Tensor) -> Tensor:
    """R/mean − 1, and −1 in a group without success (MaxRL, arXiv:2602.02710, Eq. 7 as it stands). Rewards 0 or 1.

    `maxrl_conditional` less the average score of all responses, whose expectation is 0: order T = G too. The paper's
    practice drops that average where nothing is right, which is `maxrl`, of order G − 1.
    """
    _check_binary("maxrl_control_variate", reward)
    of = _groups(reward, group)
    right = of.mean > 0
    return torch.where(right, of.centred / torch.where(right, of.mean, 1.0), -1.0).to(reward.dtype)


def reinforce(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001
    """R, without a baseline (Williams 1992).

    A group whose rewards are all 1 has advantage 1: with `rollout.dynamic_sampling`, which leaves such groups out, it
    is no estimate of the gradient of the mean reward.
    """
    return reward


def reinforce_pp(reward: Tensor, group: Tensor) -> Tensor:
    """(R − mean)/(std + 1e-6) over all responses of the rollout batch, whatever their group; unbiased std
    (REINFORCE++, arXiv:2501.03262).

    Differs from libraries that weigh each response by its number of tokens: here responses count alike.
    """
    return grpo(reward, torch.zeros_like(group), population=False)


def none(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001
    """0: for losses that read no advantage."""
    return torch.zeros_like(reward)


@compares_responses
def pkpo(reward: Tensor, group: Tensor, *, k: PositiveInt, form: PassForm, over: Over) -> Tensor:
    """Weights whose policy gradient is, without bias, that of the expected best of k rewards: pass@k for rewards 0, 1
    (PKPO, arXiv:2505.15201). Any rewards; n responses in a group, I its subsets of k, s_i = C(n, k)⁻¹ Σ_{I∋i} max_I R.

    form: `plain` s_i. `sloo` s_i − mean_{j≠i} s_j, s_j taken without i (k < n). `sloo_minus_one`
    C(n, k)⁻¹ Σ_{I∋i} (max_I − max_{I∖i}) (k ≥ 2), which for rewards 0, 1 with c right is C(n − c, k − 1)/C(n, k) where
    R = 1, else 0. No form is centred again: after leave-one-out that is biased for k > 1 (a public library does it).
    over: `sum` these weights, made for a sum over the group. `mean` n times these, for an average over the group, as
    every loss takes here: k = 1 is then of the size of `reinforce`, and the KL penalty keeps its relative weight.
    Raises ValueError where k does not fit the form or the group.
    """
    if form not in get_args(PassForm) or over not in get_args(Over):
        raise ValueError(
            f"advantage.form={form} is one of {', '.join(get_args(PassForm))}; advantage.over={over} of mean, sum."
        )
    advantage = torch.zeros_like(reward, dtype=torch.float64)
    order = torch.argsort(reward, stable=True)
    order = order[torch.argsort(group[order], stable=True)]  # by group, ascending within
    for rows in torch.tensor_split(order, torch.bincount(group).cumsum(0)[:-1].cpu()):
        n = len(rows)
        if not n:
            continue
        R = reward[rows].double()
        weights = torch.tensor(_pass_weights(n, k, form), dtype=torch.float64, device=reward.device) @ R
        # n products round to about 1e-16 of the largest; where they cancel nothing may remain, not even a sign
        weights = torch.where(weights.abs() < 1e-12 * R.abs().max(), 0.0, weights)
        advantage[rows] = weights * n if over == "mean" else weights
    return advantage.to(reward.dtype)


@cache
def _pass_weights(n: int, k: int, form: PassForm) -> tuple[tuple[float, ...], ...]:
    """[n, n]: row i has the coefficients of a group's ascending rewards in the weight of the response in place i.

    Of the subsets of k among n responses, C(j, k − 1) have their largest reward in place j.
    """
    sizes = subset_sizes(n, form)
    if k not in sizes:
        raise ValueError(
            f"advantage.k={k} with groups of {n} and advantage.form={form}: k is {sizes.start} to {sizes.stop - 1}. "
            f"Pass rollout.samples={k + (form == 'sloo')} or more, another advantage.k, or another advantage.form."
        )
    # The subsets that contain response i: their largest reward is its own, or that of a place j above it.
    own = [math.comb(j, k - 1) / math.comb(n, k) for j in range(n)]
    above = [math.comb(j - 1, k - 2) / math.comb(n, k) if k > 1 and j > 0 else 0.0 for j in range(n)]
    without = _pass_weights_without(n, k, form)
    weights = list[tuple[float, ...]]()
    for i in range(n):
        before = [-without[j] for j in range(i)]
        after = [above[j] - without[j - 1] for j in range(i + 1, n)]
        weights.append((*before, own[i], *after))
    return tuple(weights)


def _pass_weights_without(n: int, k: int, form: PassForm) -> list[float]:
    """[n − 1] coefficients of the ascending rewards of the others in what is taken from a response's weight: the mean
    of their own weights (`sloo`), or the best of a subset without it (`sloo_minus_one`).
    """
    if form == "plain":
        return [0.0] * (n - 1)
    size, share = (k, k / max(n - 1, 1)) if form == "sloo" else (k - 1, k / n)
    return [share * math.comb(j, size - 1) / math.comb(n - 1, size) for j in range(n - 1)]


@binary_rewards
@compares_responses
@needs("mask", "logp_old")
def differential_smoothing(
    reward: Tensor,
    group: Tensor,
    *,
    mask: Tensor,
    logp_old: Tensor,
    gamma_pos: NonNegativeFloat,
    gamma_neg: NonNegativeFloat,
) -> Tensor:
    """(R − mean)/(population std + 1e-6) − γ_pos·l̄ where R = 1, + γ_neg·l̄ where R = 0: right answers spread, wrong
    ones sharpen (Differential Smoothing, arXiv:2511.19942). Rewards must be 0 or 1, else ValueError.

    l̄: mean log-probability of a response's tokens (mask [B, T]) under the policy that sampled (logp_old [B, T], nats),
    0 for a response without tokens. A group whose rewards are all equal keeps these terms.
    """
    _check_binary("differential_smoothing", reward)
    mean_logp = torch.where(mask, logp_old.double(), 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
    right = reward.double()
    smoothing = (gamma_neg * (1 - right) - gamma_pos * right) * mean_logp
    return (grpo(right, group, population=True) + smoothing).to(reward.dtype)


def _check_binary(name: str, reward: Tensor) -> None:
    strange = reward[(reward != 0) & (reward != 1)]
    if strange.numel():
        raise ValueError(
            f"advantage={name} got the reward {strange[0].item():g}. It takes rewards 0 and 1 only. "
            "Pass advantage=grpo, rloo or dr_grpo, or a task with binary rewards."
        )


@needs("mask", "value")
def gae(
    reward: Tensor,
    group: Tensor,  # noqa: ARG001
    mask: Tensor,
    value: Tensor,
    *,
    gamma: Annotated[float, Interval(ge=0, le=1)],
    lam: Annotated[float, Interval(ge=0, le=1)],
    whiten: bool,
) -> tuple[Tensor, Tensor]:
    """Generalised advantages of each token, [B, T], and returns [B, T] for the value head (GAE, arXiv:1506.02438).

    The reward comes with a response's last token. With V_t the value before token t, V = 0 after the last,
    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}; t + 1 is the next token that `mask` [B, T] bool leaves.
    The returns are A + V. whiten: A then loses its mean and is divided by √(variance + 1e-8), unbiased, over all tokens
    of the batch; one token has advantage 0. At masked places both are 0. Groups play no part.
    """
    V = torch.where(mask, value.double(), 0.0)
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    r = torch.where(last, reward.double()[:, None], 0.0)
    advantage = torch.zeros_like(V)
    next_value, next_advantage = V.new_zeros(len(V)), V.new_zeros(len(V))  # of the next token that the mask leaves
    for t in reversed(range(V.shape[1])):
        real = mask[:, t]
        here = r[:, t] + gamma * next_value - V[:, t] + gamma * lam * next_advantage
        advantage[:, t] = torch.where(real, here, 0.0)
        next_advantage = torch.where(real, here, next_advantage)
        next_value = torch.where(real, V[:, t], next_value)
    returns = (advantage + V).to(reward.dtype)
    if whiten:
        every = advantage[mask]
        centred = torch.where(mask, advantage - (every.mean() if len(every) else 0.0), 0.0)
        variance = centred.square().sum() / max(len(every) - 1, 1)
        advantage = centred * (variance + WHITENING).rsqrt()
    return advantage.to(reward.dtype), returns


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
