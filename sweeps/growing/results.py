"""The results of a growing sweep so far. The only file of this package that uses `analysis.decide`, which it imports at
the first call: planning a sweep and showing its state do not wait for the import of pandas.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger.sweeps import Sweep


def _analysis() -> Any:
    return importlib.import_module("analysis.decide")


def least_seeds(first: int) -> int:
    """The number of seeds at the first look, where the user typed `first` seeds."""
    return _analysis().least_seeds(first)


def rule(first: int, last: int, parts: int) -> dict[str, Any]:
    """The numbers of seeds of the looks, and their nominal levels."""
    return _analysis().rule(first, last, parts)


def check_metric(name: str, evaluations: Sequence[str], samples: int, *, own_gpus: bool) -> None:
    """ValueError for a metric that runs with these evaluations will not measure, or that no seeds would decide.

    samples: per problem. own_gpus: whether SLURM allocates each run GPUs of its own.
    """
    with _lookup_errors_as_value_errors():
        _analysis().check_metric(name, evaluations, samples, own_gpus=own_gpus)


def look(
    home: Path, sweep_id: str, about: str, level: float, closed: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """{name, outcome, measured, groups} of each question that is not among `closed`. ValueError if no run has the
    metric.
    """
    with _lookup_errors_as_value_errors():
        return _analysis().look(home, sweep_id, about, level, closed)


@contextlib.contextmanager
def _lookup_errors_as_value_errors() -> Generator[None, None, None]:
    """An error about `--metrics`, the option of the analysis, becomes one about `until=`, the key of a launch."""
    try:
        yield
    except LookupError as error:
        raise ValueError(str(error.args[0]).replace("--metrics ", "until=decided:")) from error


def forecast(
    home: Path, sweep: Sweep, about: str, seeds: Sequence[int], nominal: Sequence[float]
) -> list[dict[str, Any]]:
    """{name, measured, chances} of each question; [] where nothing is measured yet."""
    try:
        return _analysis().forecast(home, sweep, about, seeds, nominal)
    except LookupError:
        return []


def tuning_scores(home: Path, sweep_id: str) -> Mapping[str, float]:
    """The score of each tuning run on the validation split, by run id; NaN for a run without one."""
    return _analysis().tuning_scores(home, sweep_id)
