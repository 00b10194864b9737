"""A row of the frame `runs`, typed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frames.frame import records

CONFIG = "config."
# The columns of the frame whose values are those of the typed row.
_AS_THEY_ARE = (
    *("run_id", "group_id", "name", "study", "sweep_id", "state", "loss", "divergence", "advantage", "task"),
    *("command", "eta", "beta"),
)
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
    command: str
    eta: float
    beta: float
    seed: int
    typed: tuple[str, ...]
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
    return [
        RunRow(
            **{name: row[name] for name in _AS_THEY_ARE},
            seed=0 if math.isnan(row["seed"]) else int(row["seed"]),
            typed=tuple(row["typed"]),
            config={str(c).removeprefix(CONFIG): row[c] for c in columns if _known(row[c])},
            borrowed=bool(row["reference"]),
            own_gpus=bool(row["own_gpus"]),
        )
        for row in records(runs)
    ]


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
