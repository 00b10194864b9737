"""Densities over the arms of a bandit: what a policy learned, P_π ∝ π/π_old, against LAD's target, P_A ∝ e^{A/η} (LAD,
Eqs. 4 and 5)."""

from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames.frames import RunRow

Array = NDArray[np.float64]

PROMINENCE = 0.05  # of the reward's range: a smaller bump is no mode
COVERED = 0.5  # share of the target's mass in a mode that the policy must reach


def learned_density(probability: Array, probability_old: Array) -> Array:
    """P_π = (π/π_old)/Z over the arms; arms that π_old can never draw have no ratio and are left out."""
    ratio = np.divide(probability, probability_old, out=np.zeros_like(probability), where=probability_old > 0)
    return ratio / ratio.sum()


def target_density(advantage: Array, eta: float) -> Array:
    """P_A = e^{A/η}/Z, in log space."""
    logits = advantage / eta
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def basins(reward: Array) -> list[slice]:
    """The slice of arms around each mode, bounded by the lowest points between the peaks of the reward."""
    floor = PROMINENCE * float(np.ptp(reward))
    peaks: list[int] = []
    for i in range(len(reward)):
        left, right = reward[max(i - 1, 0)], reward[min(i + 1, len(reward) - 1)]
        if reward[i] < max(left, right) or (i and reward[i] == left):
            continue
        if peaks and min(reward[i], reward[peaks[-1]]) - reward[peaks[-1] : i + 1].min() < floor:
            peaks[-1] = max(peaks[-1], i, key=lambda j: reward[j])
        else:
            peaks.append(i)
    peaks = [p for p in peaks if reward[p] - reward.min() >= floor]
    cuts = [a + int(np.argmin(reward[a : b + 1])) for a, b in pairwise(peaks)]
    edges = [0, *cuts, len(reward)]
    return [slice(a, b) for a, b in pairwise(edges)] if peaks else []


def total_variation(learned: Array, target: Array) -> Array:
    """[...] ½ Σ |P_π − P_A| over the last axis."""
    return 0.5 * np.abs(learned - target).sum(axis=-1)


def modes_covered(learned: Array, target: Array, reward: Array) -> Array:
    """[...] number of modes of the reward [K] where P_π [..., K] has at least half the mass of P_A [..., K]."""
    share = [learned[..., b].sum(-1) >= COVERED * target[..., b].sum(-1) for b in basins(reward)]
    return np.sum(share, axis=0).astype(float)


def temperature(run: RunRow) -> float:
    """η of the target P_A ∝ e^{A/η} that is a run's optimum; NaN without such a target.

    It is η for LAD, 1/β for FlowRL, and for other losses the coefficient of the KL penalty, as if that were exact: with
    its estimator k3 the optimum is another one.
    """
    if run.eta > 0:
        return run.eta
    if run.loss == "flowrl":
        return 1 / run.beta
    coefficient = float(run.knob("trainer.kl") or 0)
    return coefficient if coefficient > 0 else np.nan


def of_policy(policy: pd.DataFrame, run: RunRow) -> dict[str, float]:
    """ "total variation" and "modes covered" of a run's stored policy, a row per bandit arm; {} without a target."""
    eta = temperature(run)
    if policy.empty or np.isnan(eta):
        return {}
    rows = policy.sort_values("arm")
    learned = learned_density(rows["probability"].to_numpy(float), rows["probability_old"].to_numpy(float))
    target = target_density(rows["advantage"].to_numpy(float), eta)
    return {
        "total variation": float(total_variation(learned, target)),
        "modes covered": float(modes_covered(learned, target, rows["reward"].to_numpy(float))),
    }
