"""`tune=lr:1e-5,3e-5,1e-4`: every arm gets the same values, under seeds of their own, and goes on with its best.

A value is judged by the validation split alone (avg@n at the last evaluation, the mean over tuning seeds); the runs
that are reported have other seeds and read the test split once. The tuning runs stay out of all tables but their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from rlvr.config.overrides import key_of

FIRST_SEED = 1000  # of tuning: far from the seeds of reported runs
PROBLEMS = 256  # of the validation split, where evaluation.validation does not say


@dataclass(frozen=True)
class Grid:
    """values: what is tried, each the overrides of one try; seeds: of tuning."""

    values: list[tuple[str, ...]]
    seeds: list[int]

    @property
    def keys(self) -> list[str]:
        return [word.split("=")[0] for word in self.values[0]]


def read(text: str, arms: Sequence[Sequence[str]]) -> Grid:
    """`lr:1e-5,3e-5 seed:1000,1001`: knobs, crossed; the seeds are those of tuning. Raises ValueError."""
    axes: dict[str, list[str]] = {}
    for part in str(text).split():
        key, sign, values = part.partition(":")
        if key in axes:
            raise ValueError(f"tune={text}: {key} stands twice. Write all of its values in one place.")
        axes[key] = list(dict.fromkeys(value for value in values.split(",") if value))
        if not sign or not axes[key]:
            raise ValueError(f"tune={text}: write a knob and its values, as in tune=lr:1e-5,3e-5,1e-4.")
    seeds = axes.pop("seed", [str(FIRST_SEED)])
    if not all(seed.isdigit() for seed in seeds):
        raise ValueError(f"tune={text}: seeds are whole numbers, as in seed:1000,1001.")
    tried = [tuple(f"{key}={value}" for key, value in zip(axes, row, strict=True)) for row in _crossed(axes)]
    if len(tried) < 2:
        raise ValueError(f"tune={text} leaves nothing to choose from: give two values or more.")
    typed = {key_of(word) for arm in arms for word in arm}
    if both := [key for key in axes if key in typed]:
        raise ValueError(f"{both[0]} is tuned and given: drop {both[0]}=..., or drop it from tune.")
    return Grid(tried, [int(seed) for seed in seeds])


def _crossed(axes: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    return list(itertools.product(*axes.values())) if axes else []


def count(grid: Grid, arms: Sequence[Sequence[str]]) -> int:
    """Runs that tuning takes."""
    return len(arms) * len(grid.values) * len(grid.seeds)


def measured(master: DictConfig) -> list[str]:
    """Overrides of a tuning run, so that the validation split is measured."""
    return [] if master.evaluation.validation else [f"evaluation.validation={PROBLEMS}"]


def rule(grid: Grid, seeds: Sequence[int]) -> dict[str, Any]:
    """What sweep.json says of it. ValueError for a seed of tuning that is also reported."""
    if shared := sorted({*grid.seeds} & {*seeds}):
        raise ValueError(
            f"seed {shared[0]} would tune and be reported: a value chosen under a seed looks better under it. Give "
            f"tuning others, as in tune='... seed:{max(seeds) + FIRST_SEED}'."
        )
    return {"keys": grid.keys, "values": [" ".join(value) for value in grid.values], "seeds": grid.seeds, "picks": {}}


def pick(grid: Mapping[str, Any], scores: Mapping[str, float], runs: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """By arm, the best value and the mean of each over the tuning seeds. grid: the rule; scores: by run; runs: the
    place of the arm and the value of each tuning run.

    A value with a run that has no score (it diverged, say) is not chosen; of equal ones the first that was written is.
    The value of an arm that has none left is None.
    """
    picks: dict[str, Any] = {}
    for place in sorted({place for place, _ in runs.values()}):
        tried: dict[str, float] = {}
        for value in grid["values"]:
            own = [scores.get(run_id, math.nan) for run_id, of in runs.items() if of == (place, value)]
            tried[value] = sum(own) / len(own)
        known = {value: mean for value, mean in tried.items() if math.isfinite(mean)}
        picks[str(place)] = {"value": max(known, key=lambda value: known[value], default=None), "tried": _plain(tried)}
    return picks


def _plain(tried: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {value: mean if math.isfinite(mean) else None for value, mean in tried.items()}
