"""The Optuna study of a search: its goal, its journal file, and its suggestions."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, journal
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import Trial

from rlvr.ledger.files import private_mode
from sweeps.search.space import Space


@dataclass(frozen=True)
class Goal:
    """The metrics to optimise, and how: sampler, pruner, number of trials."""

    metrics: Sequence[str]
    directions: Sequence[Literal["maximize", "minimize"]]  # of each metric
    sampler: Callable[[int, int], optuna.samplers.BaseSampler]  # (trial, axis) -> sampler
    pruner: optuna.pruners.BasePruner
    n_trials: int
    retries: int  # of a failed trial


def suggest(study: optuna.Study, trial: Trial, space: Space, goal: Goal) -> list[str]:
    """The overrides of a trial; values that it has already stay. On entry study.sampler is that of its first axis."""
    if "fixed_params" not in study.get_trials(deepcopy=False)[trial.number].system_attrs:  # else it is a retry
        _ = trial.relative_params  # draws the values for all axes at once, with the sampler of the first

    def axis(position: int) -> str:
        study.sampler = goal.sampler(trial.number, position)
        return space.axes[position].suggest(trial)

    return space.point(axis)


class _NoLock(BaseJournalFileLock):
    """No lock of Optuna's: the controller holds the lock of the search, so that no other process writes the journal."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_study(path: Path, goal: Goal) -> optuna.Study:
    """The study of a journal, which is created if it does not exist. An incomplete last line, as a full disk leaves, is
    cut off first. ValueError for a journal that cannot be read.
    """
    if path.exists():
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1  # bytes of the complete lines
        if complete < len(content):
            with path.open("r+b") as file:
                file.truncate(complete)
    else:
        path.touch(mode=private_mode())
    try:
        return _study(JournalStorage(journal.JournalFileBackend(str(path), _NoLock())), goal)
    except (ValueError, LookupError, TypeError) as error:  # no JSON, or JSON that is no line of a study
        raise ValueError(
            f"{path} is damaged. Move it away and repeat the command: the search begins again, and runs that have "
            "finished are not trained again."
        ) from error


def study_in_memory(goal: Goal) -> optuna.Study:
    """A study that is not written to disk."""
    return _study(InMemoryStorage(), goal)


def _study(storage: BaseStorage, goal: Goal) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage,
        study_name="search",
        directions=list(goal.directions),
        load_if_exists=True,
        sampler=goal.sampler(0, 0),
        pruner=goal.pruner,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(goal.metrics))
    return study
