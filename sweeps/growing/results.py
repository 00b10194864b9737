"""What the runs of a growing sweep have shown so far. The only file here that asks `analysis`, and by name: whoever
plans a sweep, or asks how it stands, does not wait for pandas.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger.sweeps import Sweep


def _analysis() -> Any:
    return importlib.import_module("analysis.decide")


def least_seeds(first: int) -> int:
    """Seeds of the first look, where so many were asked for."""
    return _analysis().least_seeds(first)


def rule(first: int, last: int, parts: int) -> dict[str, Any]:
    """Looks and their nominal levels."""
    return _analysis().rule(first, last, parts)


def check_metric(name: str, evaluations: Sequence[str], samples: int) -> None:
    """ValueError for a metric that runs with these evaluations will not measure. samples: of a problem."""
    with _told():
        _analysis().check_metric(name, evaluations, samples)


def look(home: Path, sweep_id: str, about: str, level: float, closed: Collection[str]) -> list[dict[str, Any]]:
    """{name, outcome, measured, groups} of each question that is not closed. ValueError: a metric nobody measured."""
    with _told():
        return _analysis().look(home, sweep_id, about, level, closed)


@contextlib.contextmanager
def _told() -> Generator[None, None, None]:
    """What of a metric is wrong, in the words of a launch."""
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
    """By tuning run, its score on the validation split; NaN for one without."""
    return _analysis().tuning_scores(home, sweep_id)
