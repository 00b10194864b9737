"""Advantages from rewards, within groups of responses to one prompt.

Every function takes reward [B] and group [B] (int64 ≥ 0, small: a row number; any order, any group sizes) and returns
the advantage [B] in the reward's dtype. Sums are float64. A group whose rewards are all equal, such as a group of one,
has advantage exactly 0 wherever a mean is subtracted: a rounding error of 1e-17 has a sign, which LAD's tv would use.
"""

import math
from functools import cache
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.objective.batch import binary_rewards, compares_responses, needs, uses_equal_groups
from rlvr.objective.limits import orders, subset_sizes

EPSILON = 1e-6
WHITENING = 1e-8  # added to a variance, as in the reference implementations of PPO
PassForm = Literal["plain", "sloo", "sloo_minus_one"]
Over = Literal["mean", "sum"]


@compares_responses
def grpo(reward: Tensor, group: Tensor, *, population: bool, epsilon: PositiveFloat | None = None) -> Tensor:
    """(R − mean)/(std + epsilon) (GRPO, arXiv:2402.03300). population: divide the variance by G, not by G − 1.

    epsilon: None for 1e-6. It counts where rewards are graded and close to each other.
    """
    stats = _group_statistics(reward, group)
    divisor = stats.size if population else (stats.size - 1).clamp(min=1)
    deviation = (_sum(stats.centred.square(), group) / divisor).sqrt()
    return (stats.centred / (deviation + (epsilon or EPSILON))).to(reward.dtype)


@compares_responses
def rloo(reward: Tensor, group: Tensor) -> Tensor:
    """R_i − mean of the other rewards of its group = G/(G − 1)·(R_i − mean) (RLOO, arXiv:2402.14740)."""
    stats = _group_statistics(reward, group)
    return (stats.centred * stats.size / (stats.size - 1).clamp(min=1)).to(reward.dtype)


@compares_responses
def dr_grpo(reward: Tensor, group: Tensor) -> Tensor:
    """R − mean (Dr. GRPO, arXiv:2503.20783). Its expected gradient is 1 − 1/G of the true one."""
    return _group_statistics(reward, group).centred.to(reward.dtype)


@binary_rewards
@compares_responses
def maxrl(reward: Tensor, group: Tensor, *, order: PositiveInt | None) -> Tensor:
    """(R − mean)/(mean + 1e-6), and 0 in a group without success (MaxRL, arXiv:2602.02710). Rewards are 0 or 1.

    The expected gradient is that of the log-likelihood's expansion to order T = G − 1, with population weight
    (1 − (1 − p)^T)/p. (The paper's order G is that of `maxrl_conditional` and `maxrl_control_variate`.)

    order: a T from 1 to G − 1 selects that order instead, with the truncated Maclaurin estimator. With c successes
    among G, G·R_i·Σ_{k≤T} C(G − c, k − 1)/(k·C(G, k)) estimates the gradient of Σ_k pass@k/k = Σ_k (1 − p)^{k−1}∇p; the
    baseline is pass@T of the other responses, without bias. T = 1 is `rloo`, and T = G − 1 is order=None except for the
    1e-6. Raises ValueError for other rewards and orders.
    """
    _check_binary("maxrl", reward)
    stats = _group_statistics(reward, group)
    if order is None:
        return (stats.centred / (stats.mean + EPSILON)).to(reward.dtype)
    smallest = int(stats.size.min()) if len(stats.size) else order + 1
    if order not in orders(smallest):
        raise ValueError(
            f"advantage.order={order} with groups of {smallest}: orders are 1 to rollout.samples − 1. "
            f"Pass rollout.samples={max(order, 1) + 1}, a lower advantage.order, or null for the highest."
        )
    R, num_right = reward.double(), stats.mean * stats.size
    num_wrong, num_others = stats.size - num_right, stats.size - 1
    term, weight = torch.ones_like(R), torch.zeros_like(R)  # G·C(G − c, k − 1)/(k·C(G, k)) and its sum over k
    all_wrong = torch.ones_like(R)  # C(wrong, T)/C(G − 1, T): T of the other responses are all wrong
    for k in range(order):
        weight = weight + term
        term = term * (num_wrong - k).clamp(min=0) / (stats.size - k - 1).clamp(min=1)
        all_wrong = all_wrong * (num_wrong - (1 - R) - k).clamp(min=0) / (num_others - k)
    return torch.where(stats.centred == 0, 0.0, R * weight - (1 - all_wrong)).to(reward.dtype)


@binary_rewards
@uses_equal_groups
def maxrl_conditional(reward: Tensor, group: Tensor) -> Tensor:
    """R/mean, and 0 in a group without success (MaxRL, arXiv:2602.02710, Eq. 6). Rewards are 0 or 1.

    The average of ∇log π over the right responses alone. Its expected gradient is of order T = G, with population
    weight (1 − (1 − p)^G)/p. It has no baseline, with the corresponding variance, and a group whose rewards are all 1
    has advantage 1.
    """
    _check_binary("maxrl_conditional", reward)
    stats = _group_statistics(reward, group)
    R = reward.double()
    return torch.where(R > 0, R / stats.mean.clamp(min=torch.finfo(R.dtype).tiny), 0.0).to(reward.dtype)


@binary_rewards
@uses_equal_groups
def maxrl_control_variate(reward: Tensor, group: Tensor) -> Tensor:
    """R/mean − 1, and −1 in a group without success (MaxRL, arXiv:2602.02710, Eq. 7 as printed). Rewards 0 or 1.

    `maxrl_conditional` minus the average of ∇log π over all responses, whose expectation is 0: also of order T = G. In
    practice the paper omits that average in groups without a right response, which is `maxrl`, of order G − 1.
    """
    _check_binary("maxrl_control_variate", reward)
    stats = _group_statistics(reward, group)
    solved = stats.mean > 0
    return torch.where(solved, stats.centred / torch.where(solved, stats.mean, 1.0), -1.0).to(reward.dtype)


def reinforce(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001
    """R, without a baseline (Williams 1992).

    A group whose rewards are all 1 has advantage 1: with `rollout.dynamic_sampling`, which omits such groups, the
    result does not estimate the gradient of the mean reward.
    """
    return reward


def reinforce_pp(reward: Tensor, group: Tensor) -> Tensor:
    """(R − mean)/(std + 1e-6) over all responses of the rollout batch, whatever their group; unbiased std
    (REINFORCE++, arXiv:2501.03262).

    Differs from libraries that weight each response by its number of tokens: here all responses have the same weight.
    """
    return grpo(reward, torch.zeros_like(group), population=False)


def none(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001
    """0: for losses that read no advantage."""
    return torch.zeros_like(reward)


@compares_responses
def pkpo(reward: Tensor, group: Tensor, *, k: PositiveInt, form: PassForm, over: Over) -> Tensor:
    """Weights with which the policy gradient estimates, without bias, that of the expected maximum of k rewards: for
    rewards 0 and 1 pass@k (PKPO, arXiv:2505.15201). Any rewards; n responses in a group, I its subsets of k,
    s_i = C(n, k)⁻¹ Σ_{I∋i} max_I R.

    form: `plain` s_i. `sloo` s_i − mean_{j≠i} s_j, s_j computed without i (k < n). `sloo_minus_one`
    C(n, k)⁻¹ Σ_{I∋i} (max_I − max_{I∖i}) (k ≥ 2), which for rewards 0 and 1 with c right is C(n − c, k − 1)/C(n, k)
    where R = 1, else 0. No form is centred afterwards: after leave-one-out that is biased for k > 1 (one public library
    does it).
    over: `sum`: these weights, which are meant for a sum over the group. `mean`: n times these weights, for an average
    over the group, as all losses here use: k = 1 then has the scale of `reinforce`, and the KL penalty keeps its
    relative weight. Raises ValueError if k does not fit the form or the group.
    """
    advantage = torch.zeros_like(reward, dtype=torch.float64)
    order = torch.argsort(reward, stable=True)
    order = order[torch.argsort(group[order], stable=True)]  # by group, ascending within
    for rows in torch.tensor_split(order, torch.bincount(group).cumsum(0)[:-1].cpu()):
        n = len(rows)
        if not n:
            continue
        R = reward[rows].double()
        weights = torch.tensor(_pass_weights(n, k, form), dtype=torch.float64, device=reward.device) @ R
        # The sum has a rounding error of about 1e-16 of the largest reward; where the exact sum is 0, so is the result.
        weights = torch.where(weights.abs() < 1e-12 * R.abs().max(), 0.0, weights)
        advantage[rows] = weights * n if over == "mean" else weights
    return advantage.to(reward.dtype)


@cache
def _pass_weights(n: int, k: int, form: PassForm) -> tuple[tuple[float, ...], ...]:
    """[n, n]: row i has the coefficients of a group's rewards, in ascending order, in the weight of response i.

    Of the subsets of k among n responses, C(j, k − 1) have their largest reward at index j.
    """
    sizes = subset_sizes(n, form)
    if k not in sizes:
        raise ValueError(
            f"advantage.k={k} with groups of {n} and advantage.form={form}: k is {sizes.start} to {sizes.stop - 1}. "
            f"Pass rollout.samples={k + (form == 'sloo')} or more, another advantage.k, or another advantage.form."
        )
    # In the subsets that contain response i the largest reward is that of i, or of an index j above i.
    as_largest = [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
    below_largest = [math.comb(j - 1, k - 2) / math.comb(n, k) if k > 1 and j > 0 else 0.0 for j in range(n)]
    baseline = _baseline_weights(n, k, form)
    weights = list[tuple[float, ...]]()
    for i in range(n):
        lower = [-baseline[j] for j in range(i)]
        higher = [below_largest[j] - baseline[j - 1] for j in range(i + 1, n)]
        weights.append((*lower, as_largest[i], *higher))
    return tuple(weights)


def _baseline_weights(n: int, k: int, form: PassForm) -> list[float]:
    """[n − 1] coefficients of the other responses' rewards, ascending, in what is subtracted from a response's weight:
    the mean of the others' weights (`sloo`), or the maximum of its subsets without it (`sloo_minus_one`).
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
    """(R − mean)/(population std + 1e-6) − γ_pos·l̄ where R = 1, + γ_neg·l̄ where R = 0: flattens the distribution of
    right answers and sharpens that of wrong ones (Differential Smoothing, arXiv:2511.19942). Rewards must be 0 or 1,
    else ValueError.

    l̄: mean log-probability of a response's tokens (mask [B, T]) under the policy that sampled (logp_old [B, T], nats),
    0 for a response without tokens. A group whose rewards are all equal still has these terms.
    """
    _check_binary("differential_smoothing", reward)
    mean_logp = torch.where(mask, logp_old.double(), 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
    right = reward.double()
    smoothing = (gamma_neg * (1 - right) - gamma_pos * right) * mean_logp
    return (grpo(right, group, population=True) + smoothing).to(reward.dtype)


def _check_binary(name: str, reward: Tensor) -> None:
    invalid = reward[(reward != 0) & (reward != 1)]
    if invalid.numel():
        raise ValueError(
            f"advantage={name} got the reward {invalid[0].item():g}. It takes rewards 0 and 1 only. "
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

    The reward is that of a response's last token. With V_t the value before token t, V = 0 after the last,
    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}; t + 1 is the next token where `mask` [B, T] bool is true.
    The returns are A + V. whiten: subtract the mean from A and divide by √(variance + 1e-8), unbiased, over all tokens
    of the batch; a single token has advantage 0. Where the mask is false both are 0. Groups are not used.
    """
    V = torch.where(mask, value.double(), 0.0)
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    r = torch.where(last, reward.double()[:, None], 0.0)
    advantage = torch.zeros_like(V)
    next_value, next_advantage = V.new_zeros(len(V)), V.new_zeros(len(V))  # of the next unmasked token
    for t in reversed(range(V.shape[1])):
        real = mask[:, t]
        current = r[:, t] + gamma * next_value - V[:, t] + gamma * lam * next_advantage
        advantage[:, t] = torch.where(real, current, 0.0)
        next_advantage = torch.where(real, current, next_advantage)
        next_value = torch.where(real, V[:, t], next_value)
    returns = (advantage + V).to(reward.dtype)
    if whiten:
        unmasked = advantage[mask]
        mean = unmasked.mean() if len(unmasked) else 0.0
        centred = torch.where(mask, advantage - mean, 0.0)
        variance = centred.square().sum() / max(len(unmasked) - 1, 1)
        advantage = centred * (variance + WHITENING).rsqrt()
    return advantage.to(reward.dtype), returns


# --- advantages that read more than the rewards of a group


@compares_responses
@needs("mask")
def reinforce_pp_baseline(reward: Tensor, group: Tensor, *, mask: Tensor, over: Literal["response", "token"]) -> Tensor:
    """(R − group mean)/std of these over the rollout batch (REINFORCE++-baseline, arXiv:2501.03262).

    over: `response`, the unbiased std over responses + 1e-6; `token`: mean and unbiased variance over tokens, so that a
    long response weighs more, divided by √(variance + 1e-8), as in verl. Both as `reinforce_pp` without the group mean.
    """
    if over == "response":
        return batch_std(reward, group, skip_equal=False)
    centred = _group_statistics(reward, group).centred
    length = mask.sum(-1).double()
    mean = (length * centred).sum() / length.sum().clamp(min=1)
    variance = (length * (centred - mean).square()).sum() / (length.sum() - 1).clamp(min=1)
    return ((centred - mean) * (variance + WHITENING).rsqrt()).to(reward.dtype)


@compares_responses
def batch_std(reward: Tensor, group: Tensor, *, skip_equal: bool) -> Tensor:
    """(R − group mean)/(unbiased std of these over the rollout batch + 1e-6) (ScaleRL, arXiv:2510.13786).

    skip_equal: the std is over groups whose rewards are not all equal, which makes it larger.
    """
    stats = _group_statistics(reward, group)
    counted = stats.centred[_spread(stats, group)] if skip_equal else stats.centred
    deviation = counted.std() if len(counted) > 1 else 0.0
    return (stats.centred / (deviation + EPSILON)).to(reward.dtype)


@compares_responses
@needs("mask")
def opo(reward: Tensor, group: Tensor, *, mask: Tensor) -> Tensor:
    """R − Σ n·R/Σ n over the group, n the tokens of a response: the baseline of least variance (OPO, arXiv:2505.23585).

    Differs from the paper: in a group without tokens the baseline is the mean.
    """
    stats = _group_statistics(reward, group)
    length = mask.sum(-1).double()
    total = _sum(length, group)
    shift = _sum(length * stats.centred, group) / total.clamp(min=1)
    return (stats.centred - shift).to(reward.dtype)


@compares_responses
@uses_equal_groups
def shrinkage(reward: Tensor, group: Tensor) -> Tensor:
    """R_i − b_i, b_i = (1 − λ)·mean of the other rewards of the group + λ·mean m of the other groups (James and Stein,
    arXiv:2511.03710, JSPO). Unbiased: neither b_i nor λ contains R_i. With λ = 0, as for a single group, it is `rloo`.

    λ = v/(v + s + 1e-6) from the other groups alone: m mean of their means, v mean of their unbiased variances over
    their sizes, s mean squared distance of their means from m. A group of equal rewards has an advantage.
    """
    stats = _group_statistics(reward, group)
    variance = _sum(stats.centred.square(), group) / (stats.size - 1).clamp(min=1) / stats.size
    num = _num_groups(group)
    zero = reward.new_zeros(num, dtype=torch.float64)
    size, mean, noise = (
        zero.index_add(0, group, x / stats.size) for x in (torch.ones_like(stats.mean), stats.mean, variance)
    )
    others = (size > 0) & ~torch.eye(num, dtype=torch.bool, device=group.device)  # [P, P]; absent groups do not count
    num_others = others.sum(1).clamp(min=1)
    m, v = ((others * x).sum(1) / num_others for x in (mean, noise))
    s = (others * (mean - m[:, None]).square()).sum(1) / num_others
    weight = torch.where(others.any(1), v / (v + s + EPSILON), 0.0)
    others_in_group = stats.mean - stats.centred / (stats.size - 1).clamp(min=1)
    baseline = (1 - weight[group]) * others_in_group + weight[group] * m[group]
    return (reward.double() - baseline).to(reward.dtype)


@compares_responses
def gpg(reward: Tensor, group: Tensor) -> Tensor:
    """α·(R − mean), α = B/(responses in groups of unequal rewards) (GPG, arXiv:2504.02546): groups that teach nothing
    do not make the step smaller. With dynamic sampling, which leaves them out, α is 1.
    """
    stats = _group_statistics(reward, group)
    teaching = int(_spread(stats, group).sum())
    return (stats.centred * (len(reward) / max(teaching, 1))).to(reward.dtype)


@binary_rewards
@uses_equal_groups
def signed(
    reward: Tensor,
    group: Tensor,  # noqa: ARG001
    *,
    right: NonNegativeFloat,
    wrong: NonNegativeFloat,
) -> Tensor:
    """`right` where R = 1, −`wrong` where R = 0, without a baseline (arXiv:2506.01347): W-REINFORCE 0.1 and 1, PSR 1
    and 0, NSR 0 and 1. Rewards are 0 or 1.

    Differs from the paper for PSR and NSR: responses of the other kind, whose advantage is 0, stay in the mean.
    """
    _check_binary("signed", reward)
    return torch.where(reward == 1, right, -wrong).to(reward.dtype)


@binary_rewards
@compares_responses
def passk(reward: Tensor, group: Tensor, *, k: PositiveInt) -> Tensor:
    """The analytic advantage of pass@k training (arXiv:2508.10751): with n responses, w of them wrong, and the chance
    ρ = 1 − C(w, k)/C(n, k) that a subset of k has a right one, σ = √(ρ(1 − ρ)): right (1 − ρ)/(σ + 1e-6), wrong
    (1 − ρ − C(w − 1, k − 1)/C(n − 1, k − 1))/(σ + 1e-6). 0 where σ = 0. k = 1 is `grpo` with the population's std.

    Raises ValueError for other rewards and for k above the size of a group.
    """
    _check_binary("passk", reward)
    stats = _group_statistics(reward, group)
    if len(stats.size) and k > int(stats.size.min()):
        smallest = int(stats.size.min())
        raise ValueError(f"advantage.k={k} with groups of {smallest}: k is 1 to {smallest}. Pass rollout.samples={k}.")
    wrong = (stats.size * (1 - stats.mean)).round()
    all_wrong, others_wrong = torch.ones_like(wrong), torch.ones_like(wrong)  # C(w, k)/C(n, k); C(w − 1, k − 1)/…
    for i in range(k):
        all_wrong = all_wrong * (wrong - i).clamp(min=0) / (stats.size - i)
        if i:
            others_wrong = others_wrong * (wrong - i).clamp(min=0) / (stats.size - i)
    deviation = ((1 - all_wrong) * all_wrong).sqrt()
    numerator = torch.where(reward == 1, all_wrong, all_wrong - others_wrong)
    return torch.where(deviation == 0, 0.0, numerator / (deviation + EPSILON)).to(reward.dtype)


class _GroupStatistics(NamedTuple):
    """Statistics of each row's group, [B] float64."""

    size: Tensor
    mean: Tensor
    centred: Tensor  # R − mean; exactly 0 where the rewards of the group are equal


def _group_statistics(reward: Tensor, group: Tensor) -> _GroupStatistics:
    R = reward.double()
    size = _sum(torch.ones_like(R), group)
    mean = _sum(R, group) / size
    extremes = R.new_zeros(_num_groups(group))
    low, high = (extremes.scatter_reduce(0, group, R, op, include_self=False)[group] for op in ("amin", "amax"))
    return _GroupStatistics(size, mean, torch.where(low == high, 0.0, R - mean))


def _sum(values: Tensor, group: Tensor) -> Tensor:
    """The sum of `values` [B] over each row's group, [B]."""
    return values.new_zeros(_num_groups(group)).index_add(0, group, values)[group]


def _num_groups(group: Tensor) -> int:
    return int(group.max()) + 1 if group.numel() else 0


def _spread(stats: _GroupStatistics, group: Tensor) -> Tensor:
    """Whether the rewards of each row's group differ, [B] bool."""
    return _sum(stats.centred.abs(), group) > 0
