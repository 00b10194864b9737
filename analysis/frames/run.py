"""A row of the frame `runs`, typed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.frame import records

CONFIG = "config."
REPETITION = ":again"  # suffix of the group id of runs that repeat an arm with other seeds, as its noise floor


@dataclass(frozen=True, eq=False)
class RunRow:
    """One planned run.

    typed: its overrides. command: the command that launched it. config: dotted key to plain value, known values only.
    borrowed: added from another study, for comparison.
    """

    run_id: str
    group_id: str
    name: str
    study: str
    sweep_id: str
    state: str
    loss: str
    divergence: str
    advantage: str
    task: str
    eta: float
    beta: float
    seed: int
    typed: tuple[str, ...]
    command: str
    config: Mapping[str, Any]
    borrowed: bool
    own_gpus: bool

    @property
    def again(self) -> bool:
        """Whether the run repeats an arm as its noise floor. It does not count as a seed of that arm."""
        return self.group_id.endswith(REPETITION)

    def knob(self, key: str) -> Any:
        """The value of a dotted config key, or the chosen option of a config group; None if it is not known."""
        return self.config.get(f"choices.{key}", self.config.get(key))


def rows(runs: pd.DataFrame) -> list[RunRow]:
    """The typed rows of a frame `runs`."""
    columns = [c for c in runs.columns if str(c).startswith(CONFIG)]
    typed_rows: list[RunRow] = []
    for row in records(runs):
        config = {str(c).removeprefix(CONFIG): row[c] for c in columns if _known(row[c])}
        typed_rows.append(
            RunRow(
                run_id=str(row["run_id"]),
                group_id=str(row["group_id"]),
                name=str(row["name"]),
                study=str(row["study"]),
                sweep_id=str(row["sweep_id"]),
                state=str(row["state"]),
                loss=str(row["loss"]),
                divergence=str(row["divergence"]),
                advantage=str(row["advantage"]),
                task=str(row["task"]),
                eta=float(row["eta"]),
                beta=float(row["beta"]),
                seed=0 if math.isnan(row["seed"]) else int(row["seed"]),
                typed=tuple(row["typed"]),
                command=str(row["command"]),
                config=config,
                borrowed=bool(row["reference"]),
                own_gpus=bool(row["own_gpus"]),
            )
        )
    return typed_rows


def check_seeds(runs: Iterable[RunRow]) -> None:
    """Raises LookupError, with their names, for two runs of one arm with one seed: it is not known which one counts."""
    first: dict[tuple[str, int], RunRow] = {}
    for run in runs:
        other = first.setdefault((run.group_id, run.seed), run)
        if other is not run and run.group_id:  # "": the arm of the run is not known
            raise LookupError(
                f"{other.name} ({other.run_id}) and {run.name} ({run.run_id}) are both of seed {run.seed} of one arm. "
                "Leave one out; if they are imports of two runs, import each with its own --seed."
            )


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
