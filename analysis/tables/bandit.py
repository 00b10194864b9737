"""The bandit table: how close each method comes to LAD's target density, and how many of its modes it keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.frames.frames import Frames, grouped
from analysis.report.cells import cells_frame, row_records
from analysis.report.table import Format, Table
from analysis.scores.arm import Arm, arms, distinct_names
from analysis.scores.cell import Cell, gravest, why_absent
from analysis.scores.contrast import Scores
from analysis.scores.density import (
    COVERED,
    Array,
    basins,
    learned_density,
    modes_covered,
    target_density,
    total_variation,
)
from analysis.scores.labels import inverse
from rlvr.ledger.cause import State

QUESTION = "Does training reach the target density P_A ∝ e^{A/η} over the arms of the bandit, with every mode?"
NEEDS = "runs of a bandit, some of them with an η"


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
    names: dict[Arm, str] = {}
    for of_eta in grouped(bandits, lambda a: a.eta if a.eta > 0 else 0.0).values():
        names |= distinct_names({arm: _name(arm) for arm in of_eta})
    return [_match(arm, names[arm], eta, policies) for arm in bandits for eta in ([arm.eta] if arm.eta > 0 else etas)]


def _name(arm: Arm) -> str:
    name = f"{arm.method} + KL" if arm.loss != "lad" and arm.first.knob("trainer.kl") else arm.method
    return ", ".join(filter(None, (name, arm.variant, arm.setting)))


def _match(arm: Arm, name: str, eta: float, policies: Mapping[str, pd.DataFrame]) -> Match:
    finished = [run for run in arm.runs if run.run_id in policies and run.state == State.FINISHED]
    columns = {
        key: np.array([policies[run.run_id][key].to_numpy(float) for run in finished])
        for key in ("probability", "probability_old", "advantage", "reward")
    }
    new_and_old = zip(columns["probability"], columns["probability_old"], strict=True)
    return Match(
        method=name,
        eta=eta,
        seeds=tuple(run.seed for run in finished),
        learned=np.array([learned_density(new, old) for new, old in new_and_old]),
        target=np.array([target_density(advantage, eta) for advantage in columns["advantage"]]),
        reward=columns["reward"][-1] if finished else np.zeros(0),
        planned=len(arm.runs),
        states=tuple(why_absent(arm, [run.run_id for run in finished])),
    )


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    all_matches = matches(frames)
    if not all_matches:
        return None
    arms = frames.policy["arm"].nunique()
    records = []
    for match in all_matches:
        records += row_records(f"{arms} arms, 1/η = {inverse(match.eta)}", match.method, _cells(match))
    seeds = max(len(m.learned) for m in all_matches)
    num_modes = max((m.num_modes for m in all_matches if len(m.learned)), default=0)
    in_reward = f" ({num_modes} in the reward)" if num_modes else ""
    notes = (
        "Total variation is ½ Σ |P_π − P_A| over the arms, with P_π = (π/π_old)/Z: 0 is the target, 1 is disjoint.",
        f"A mode{in_reward} is covered if P_π has at least {COVERED:.0%} of the target's mass around it.",
        f"Mean over {seeds} seed{'' if seeds == 1 else 's'}"
        + ("; ± is half the width of a 95 % t interval over them." if seeds > 1 else "."),
    )
    return Table(
        "bandit",
        "Bandit: the density that was learned",
        QUESTION,
        cells_frame(records),
        ("",),
        notes,
        formats={"modes covered": Format(1.0, 1, "")},
        format=Format(1.0, 3, "", better=-1),
    )


def _cells(match: Match) -> dict[str, Cell]:
    """By column: one number per seed; the worst seed by total variation alone."""
    names = ("total variation", "total variation, worst seed", "modes covered")
    if not len(match.learned):
        return dict.fromkeys(names, Cell(planned=match.planned, state=gravest(match.states)))
    worst = int(match.total_variation.argmax())
    columns = (
        Scores.of_runs(match.seeds, match.total_variation),
        Scores.of_runs([match.seeds[worst]], match.total_variation[[worst]]),
        Scores.of_runs(match.seeds, match.modes_covered),
    )
    state = "ok" if match.planned == len(match.learned) else "partial"
    of_columns = [replace(Cell.of(scores, match.planned), state=state) for scores in columns]
    return dict(zip(names, of_columns, strict=True))
