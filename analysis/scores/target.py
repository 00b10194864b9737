"""What a bandit policy learned against what LAD wants: P_π ∝ π/π_old and P_A ∝ e^{A/η} (LAD, Eqs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analysis.frames.load import Frames
from analysis.scores.arms import Arm, arms
from rlvr.ledger.cause import State

Array = NDArray[np.float64]

PROMINENCE = 0.05  # of the reward's range: a smaller bump is no mode
COVERED = 0.5  # share of the target's mass in a mode that the policy must reach


@dataclass(frozen=True)
class Match:
    """One method at one η over S seeds and K bandit arms."""

    method: str
    eta: float
    learned: Array  # [S, K] P_π
    target: Array  # [S, K] P_A
    reward: Array  # [K]
    planned: int
    states: tuple[str, ...]  # of the runs that have no policy

    @property
    def total_variation(self) -> Array:
        """[S] ½ Σ |P_π − P_A|."""
        return 0.5 * np.abs(self.learned - self.target).sum(axis=1)

    @property
    def num_modes(self) -> int:
        return len(basins(self.reward))

    @property
    def modes_covered(self) -> Array:
        """[S] modes where P_π has at least half the target's mass."""
        parts = basins(self.reward)
        share = [self.learned[:, b].sum(1) >= COVERED * self.target[:, b].sum(1) for b in parts]
        return np.sum(share, axis=0).astype(float)


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
    """The stretch of arms around each mode: between the lowest points that separate the peaks of the reward."""
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


def matches(frames: Frames) -> list[Match]:
    """Every method that stored a bandit policy; one without η (GRPO) is held against each η of the LAD runs."""
    if frames.policy.empty:
        return []
    stored = set(frames.policy["run_id"])
    tasks = set(frames.runs.loc[frames.runs["run_id"].isin(stored), "task"])
    found = arms(frames.runs[frames.runs["task"].isin(tasks)])
    etas = sorted({a.eta for a in found if a.loss == "lad" and a.eta > 0}, reverse=True)
    return list(_matches(frames, found, etas))


def _matches(frames: Frames, found: list[Arm], etas: list[float]) -> Iterator[Match]:
    policies = {run_id: part.sort_values("arm") for run_id, part in frames.policy.groupby("run_id")}
    state = frames.runs.set_index("run_id")["state"]
    for arm in sorted(found, key=lambda a: (a.loss != "lad", a.setting)):
        have = [i for i in arm.run_ids if i in policies and state[i] == State.FINISHED]
        missing = tuple(
            state[i] if state[i] != State.FINISHED else "not evaluated" for i in arm.run_ids if i not in have
        )
        kl = frames.runs.set_index("run_id").get("config.trainer.kl")
        name = arm.method if arm.loss == "lad" or kl is None or not kl[arm.run_ids[0]] else f"{arm.method} + KL"
        name = ", ".join(x for x in (name, arm.variant, arm.setting) if x)
        for eta in [arm.eta] if arm.eta > 0 else etas:
            learned, target, reward = [], [], np.zeros(0)
            for run_id in have:
                p = policies[run_id]
                learned.append(learned_density(p["probability"].to_numpy(float), p["probability_old"].to_numpy(float)))
                target.append(target_density(p["advantage"].to_numpy(float), eta))
                reward = p["reward"].to_numpy(float)
            yield Match(name, eta, np.array(learned), np.array(target), reward, len(arm.run_ids), missing)
