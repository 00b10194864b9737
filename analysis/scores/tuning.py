"""The tuning of each arm: the values tried, their scores on the validation split, and the value picked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.frames.frames import Frames
from analysis.scores import labels
from analysis.scores.arm import Arm, arms, settings
from analysis.scores.cell import validation_scores
from analysis.scores.metric import Metric, avg
from rlvr.ledger.sweeps import TUNING
from rlvr.metrics import VALIDATION


@dataclass(frozen=True)
class Tried:
    """One value tried for one arm. scores: of its runs by seed, NaN for a run without a result."""

    value: str  # as it is printed: `lr = 1e-5`
    knobs: Mapping[str, str]
    scores: tuple[float, ...]
    picked: bool

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class Tuned:
    """The tuning of one arm. values: in the order of the grid; edge: the knobs whose best value is the smallest or the
    largest of three or more numbers, so that a better one may lie beyond.
    """

    arm: str
    values: tuple[Tried, ...]
    edge: tuple[str, ...]

    @property
    def picked(self) -> Tried | None:
        return next((value for value in self.values if value.picked), None)


def judge(frames: Frames | None) -> Metric | None:
    """The metric that picks values: the avg@n of the validation split with the largest n; None if none was measured.

    frames: of the tuning runs (`tuning_runs`).
    """
    if frames is None:
        return None
    names = {n for run in frames.rows for n in frames.digest.names(run.run_id) if n.startswith(VALIDATION)}
    sizes = [int(n.rpartition("_")[2]) for n in names if "/avg_at_" in n]
    return avg(max(sizes)) if sizes else None


def run_scores(frames: Frames) -> dict[str, float]:
    """By run, the mean over validation benchmarks at its last evaluation; NaN for a run without one. frames: of the
    tuning runs."""
    metric = judge(frames)
    if metric is None:
        return {run.run_id: math.nan for run in frames.rows}
    known = {i: mean for arm in arms(frames) for i, mean in validation_scores(frames, arm, metric).items()}
    return {run_id: known.get(run_id, math.nan) for arm in arms(frames) for run_id in arm.run_ids}


def tuning_runs(frames: Frames) -> Frames | None:
    """The frames of the tuning runs. None if they are not available: a bundle holds only the reported runs."""
    if frames.tuned is not None:
        return frames.tuned
    tried = {run["run_id"] for sweep in frames.sweeps for run in sweep.runs if run.get("stage") == TUNING}
    return frames if tried.issuperset(run.run_id for run in frames.rows if not run.borrowed) else None


def tuned(frames: Frames) -> list[Tuned]:
    """The tuning of every arm, as the newest launch that tuned recorded it; [] where nothing was tuned."""
    rule: Mapping[str, Any] = frames.newest("tune") or {}
    source = tuning_runs(frames)
    if not rule or source is None:
        return []
    scores, keys = run_scores(source), list(rule["keys"])
    by_name: dict[str, list[Arm]] = {}
    several = len(settings(arms(source))) > 1
    for arm in arms(source):
        other_knobs = {key: value for key, value in arm.knobs.items() if key not in keys}
        name = labels.text(other_knobs) or arm.method
        by_name.setdefault(f"{name}, {arm.setting}" if several else name, []).append(arm)
    tunings = [_of_arm(name, of_values, rule, scores) for name, of_values in by_name.items()]
    return [tuning for tuning in tunings if tuning.values]  # a knob of the setting is no arm's


def _of_arm(name: str, of_values: Sequence[Arm], rule: Mapping[str, Any], scores: Mapping[str, float]) -> Tuned:
    """of_values: the arms in the tuning runs that become one arm, one for each value tried."""
    keys, order = list(rule["keys"]), [labels.parse(value) for value in rule["values"]]
    by_value = [(value, arm) for value in order for arm in of_values if _has_values(arm, value)]
    means = {i: float(np.mean([scores[r] for r in arm.run_ids])) for i, (_, arm) in enumerate(by_value)}
    known = [i for i, mean in means.items() if math.isfinite(mean)]
    best = max(known, key=lambda i: means[i]) if rule["picks"] and known else None
    values = tuple(
        Tried(labels.text(value), value, tuple(scores[r] for r in arm.run_ids), i == best)
        for i, (value, arm) in enumerate(by_value)
    )
    picked = values[best].knobs if best is not None else None
    return Tuned(name, values, tuple(key for key in keys if picked and _at_edge(picked[key], key, order)))


def _has_values(arm: Arm, knobs: Mapping[str, str]) -> bool:
    return all(key in arm.knobs and labels.equal(arm.knobs[key], value) for key, value in knobs.items())


def _at_edge(picked: str, key: str, order: Sequence[Mapping[str, str]]) -> bool:
    numbers = sorted({labels.number(value[key]) for value in order})
    return len(numbers) > 2 and not math.isnan(numbers[0]) and labels.number(picked) in (numbers[0], numbers[-1])
