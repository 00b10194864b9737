"""The importance of knobs: the share of the variance of results between runs that one knob alone explains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.frames.frames import Frames, RunRow
from analysis.scores.arm import arms
from analysis.scores.measured import last_logged
from analysis.scores.metric import Metric, benchmarks, widest
from analysis.scores.selection import value_of
from rlvr.ledger.cause import State
from rlvr.metrics import EVALUATION, VALIDATION, accuracy

LEAST_RUNS = 6
RESULT = "result"  # the expected reward, where no problem was judged: not a share
MOST_VALUES = 6  # of a numeric knob: more values are put into so many groups of equal size


@dataclass(frozen=True)
class Explored:
    """The finished runs of a study that varied two knobs or more. values: of each knob, as text; results: of each
    metric, those that the page headlines."""

    knobs: tuple[str, ...]
    runs: tuple[RunRow, ...]
    values: tuple[tuple[str, ...], ...]  # by run
    metrics: tuple[str, ...]
    results: tuple[tuple[float, ...], ...]  # by run and metric
    importance: Mapping[str, tuple[float, ...]]  # by knob and metric, by the first metric; NaN: too few runs


def explored(frames: Frames) -> Explored | None:
    """None unless several runs differ in two knobs or more."""
    rows: list[tuple[RunRow, dict[str, str], tuple[float, ...]]] = []
    metrics = widest(benchmarks(frames, [run.run_id for run in frames.rows])[1])
    knobs = list(dict.fromkeys(key for arm in arms(frames) for key in arm.knobs))
    for arm in arms(frames):
        values = {key: value for key in knobs if (value := value_of(arm, key)) is not None}
        for run in arm.runs:
            results = _results(frames, run, metrics)
            if run.state == State.FINISHED and all(map(math.isfinite, results)):
                rows.append((run, values, results))
    varied = [k for k in knobs if len({values.get(k, "") for _, values, _ in rows}) > 1]
    if len(varied) < 2 or len(rows) < LEAST_RUNS:
        return None
    runs, of_knobs, results = zip(*rows, strict=True)
    by_knob = {k: [values.get(k, "") for values in of_knobs] for k in varied}
    columns = [list(column) for column in zip(*results, strict=True)]
    shares = {k: tuple(explained(values, column) for column in columns) for k, values in by_knob.items()}
    ranked = dict(sorted(shares.items(), key=lambda pair: (-pair[1][0] if math.isfinite(pair[1][0]) else 1.0, pair[0])))
    texts = tuple(zip(*by_knob.values(), strict=True))
    return Explored(tuple(varied), runs, texts, tuple(map(str, metrics)) or (RESULT,), results, ranked)


def _results(frames: Frames, run: RunRow, metrics: Sequence[Metric]) -> tuple[float, ...]:
    """What the last evaluation of a run logged, of each metric; without judged problems its expected reward."""
    steps = frames.digest.steps(run.run_id)
    if metrics:
        sources, _ = benchmarks(frames, [run.run_id])
        return tuple(last_logged(frames, run.run_id, metric, sources) for metric in metrics)
    names = [n for n in frames.digest.names(run.run_id) if n.startswith((EVALUATION, VALIDATION))]
    last = {name: frames.digest.logged(run.run_id, name, steps[-1]) for name in names} if steps else {}
    result = accuracy({name: value for name, value in last.items() if math.isfinite(value)})
    return (math.nan if result is None else result,)


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
