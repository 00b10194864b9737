"""What a bandit policy learned, P_π ∝ π/π_old, against LAD's target, P_A ∝ e^{A/η} (LAD, Eqs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames.frames import Frames
from analysis.scores.arm import Arm, arms
from analysis.scores.density import Array, basins, learned_density, modes_covered, target_density, total_variation
from rlvr.ledger.cause import State


@dataclass(frozen=True)
class Match:
    """One method at one η over S seeds and K bandit arms."""

    method: str
    eta: float
    seeds: tuple[int, ...]
    learned: Array  # [S, K] P_π
    target: Array  # [S, K] P_A
    reward: Array  # [K]
    planned: int
    states: tuple[str, ...]  # of the runs without a policy

    @property
    def total_variation(self) -> Array:
        """[S] ½ Σ |P_π − P_A|."""
        return total_variation(self.learned, self.target)

    @property
    def num_modes(self) -> int:
        return len(basins(self.reward))

    @property
    def modes_covered(self) -> Array:
        """[S] number of modes where P_π has at least half the target's mass."""
        return modes_covered(self.learned, self.target, self.reward)


def matches(frames: Frames) -> list[Match]:
    """Every method that stored a bandit policy. One without η (GRPO) is compared to the target of each η of LAD."""
    if frames.policy.empty:
        return []
    stored = set(frames.policy["run_id"])
    tasks = {run.task for run in frames.rows if run.run_id in stored}
    bandits = [arm for arm in arms(frames) if arm.first.task in tasks]
    etas = sorted({a.eta for a in bandits if a.loss == "lad" and a.eta > 0}, reverse=True)
    policies = {str(run_id): part.sort_values("arm") for run_id, part in frames.policy.groupby("run_id")}
    bandits.sort(key=lambda a: (a.loss != "lad", a.setting))
    return [_match(arm, eta, policies) for arm in bandits for eta in ([arm.eta] if arm.eta > 0 else etas)]


def _match(arm: Arm, eta: float, policies: Mapping[str, pd.DataFrame]) -> Match:
    name = f"{arm.method} + KL" if arm.loss != "lad" and arm.first.knob("trainer.kl") else arm.method
    finished = [run for run in arm.runs if run.run_id in policies and run.state == State.FINISHED]
    missing = [run.state if run.state != State.FINISHED else "not evaluated" for run in arm.runs if run not in finished]
    columns = {
        key: np.array([policies[run.run_id][key].to_numpy(float) for run in finished])
        for key in ("probability", "probability_old", "advantage", "reward")
    }
    new_and_old = zip(columns["probability"], columns["probability_old"], strict=True)
    return Match(
        method=", ".join(filter(None, (name, arm.variant, arm.setting))),
        eta=eta,
        seeds=tuple(run.seed for run in finished),
        learned=np.array([learned_density(new, old) for new, old in new_and_old]),
        target=np.array([target_density(advantage, eta) for advantage in columns["advantage"]]),
        reward=columns["reward"][-1] if finished else np.zeros(0),
        planned=len(arm.runs),
        states=tuple(missing),
    )
