"""The importance of knobs: the share of the variance of results between runs that one knob alone explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.frames.frames import Frames, RunRow
from analysis.scores.arm import arms
from analysis.scores.selection import value_of
from rlvr.ledger.cause import State
from rlvr.metrics import EVALUATION, VALIDATION, accuracy

LEAST_RUNS = 6
MOST_VALUES = 6  # of a numeric knob: more values are put into so many groups of equal size


@dataclass(frozen=True)
class Explored:
    """The finished runs of a study that varied two knobs or more. values: of each knob, as text; results: avg@n, on the
    validation split if that was measured."""

    knobs: tuple[str, ...]
    runs: tuple[RunRow, ...]
    values: tuple[tuple[str, ...], ...]  # by run
    results: tuple[float, ...]
    importance: Mapping[str, float]  # most important first; NaN: too few runs


def explored(frames: Frames) -> Explored | None:
    """None unless several runs differ in two knobs or more."""
    rows: list[tuple[RunRow, dict[str, str], float]] = []
    knobs = list(dict.fromkeys(key for arm in arms(frames) for key in arm.knobs))
    for arm in arms(frames):
        values = {key: value for key in knobs if (value := value_of(arm, key)) is not None}
        for run in arm.runs:
            result = _result(frames, run)
            if run.state == State.FINISHED and math.isfinite(result):
                rows.append((run, values, result))
    varied = [k for k in knobs if len({values.get(k, "") for _, values, _ in rows}) > 1]
    if len(varied) < 2 or len(rows) < LEAST_RUNS:
        return None
    results = [result for _, _, result in rows]
    shares = {k: explained([values.get(k, "") for _, values, _ in rows], results) for k in varied}
    ranked = dict(sorted(shares.items(), key=lambda pair: (-pair[1] if math.isfinite(pair[1]) else 1.0, pair[0])))
    texts = tuple(tuple(values.get(k, "") for k in varied) for _, values, _ in rows)
    return Explored(tuple(varied), tuple(run for run, _, _ in rows), texts, tuple(results), ranked)


def _result(frames: Frames, run: RunRow) -> float:
    steps = frames.digest.steps(run.run_id)
    names = [n for n in frames.digest.names(run.run_id) if n.startswith((EVALUATION, VALIDATION))]
    last = {name: frames.digest.logged(run.run_id, name, steps[-1]) for name in names} if steps else {}
    result = accuracy({name: value for name, value in last.items() if math.isfinite(value)})
    return math.nan if result is None else result


def explained(values: Sequence[str], results: Sequence[float]) -> float:
    """The adjusted R² of one-way analysis of variance: 1 − (MS within)/(MS total), not below 0; NaN if undefined.

    values: of a knob, by run; if there are more than MOST_VALUES different numbers, they are grouped by rank.
    """
    groups = _groups(values)
    y, codes = np.asarray(results, float), np.unique(groups, return_inverse=True)[1]
    total, number = ((y - y.mean()) ** 2).sum(), int(codes.max()) + 1
    if total == 0 or len(y) <= number or number < 2:
        return math.nan
    means = np.bincount(codes, y) / np.bincount(codes)
    within = ((y - means[codes]) ** 2).sum()
    return max(0.0, float(1 - (within / (len(y) - number)) / (total / (len(y) - 1))))


def _groups(values: Sequence[str]) -> Sequence[str | int]:
    try:
        numbers = np.array([float(v) for v in values])
    except ValueError:
        return values
    different = np.unique(numbers)
    if len(different) <= MOST_VALUES:
        return values
    return np.searchsorted(np.quantile(numbers, np.linspace(0, 1, MOST_VALUES + 1)[1:-1]), numbers).tolist()
