"""The Optuna study of a search: what it is to optimise, where it is kept, and what it suggests."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, journal
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import Trial

from sweeps.search.space import Space


@dataclass(frozen=True)
class Goal:
    """What is optimised, by what means, how long."""

    metrics: Sequence[str]
    directions: Sequence[Literal["maximize", "minimize"]]  # one for each
    sampler: Callable[[int, int], optuna.samplers.BaseSampler]  # for (trial, axis)
    pruner: optuna.pruners.BasePruner
    n_trials: int
    retries: int


def suggest(study: optuna.Study, trial: Trial, space: Space, goal: Goal) -> list[str]:
    """The overrides of a trial; what it was given before stays. The study's sampler is that of its first axis."""
    if "fixed_params" not in study.get_trials(deepcopy=False)[trial.number].system_attrs:  # else it repeats another
        _ = trial.relative_params  # drawn for all axes at once, by that sampler

    def axis(position: int) -> str:
        study.sampler = goal.sampler(trial.number, position)
        return space.axes[position].suggest(trial)

    return space.point(axis)


class _Ours(BaseJournalFileLock):
    """The controller holds a lock of its own for as long as it lives: no other writes this journal."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_study(path: Path, goal: Goal) -> optuna.Study:
    """The study of a journal, made if it is new. A line that a full disk has torn is cut off first.

    ValueError for a journal that cannot be read.
    """
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
    try:
        return _study(JournalStorage(journal.JournalFileBackend(str(path), _Ours())), goal)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is damaged. Move it away and repeat the command: the search begins again, and what it proposed "
            "before and has finished is not trained again."
        ) from error


def study_on_paper(goal: Goal) -> optuna.Study:
    """A study that is written nowhere."""
    return _study(InMemoryStorage(), goal)


def _study(storage: BaseStorage, goal: Goal) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(
        storage=storage,
        study_name="search",
        directions=list(goal.directions),
        load_if_exists=True,
        sampler=goal.sampler(0, 0),
        pruner=goal.pruner,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names(list(goal.metrics))
    return made
