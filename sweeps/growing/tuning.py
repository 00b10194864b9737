"""`tune=lr:1e-5,3e-5,1e-4`: every arm is run with the same values, under tuning seeds; its best value is then reported.

A value is judged by the validation split alone (avg@n at the last evaluation, the mean over tuning seeds); the runs
that are reported have other seeds and read the test split once. Tuning runs appear in no tables but their own.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from rlvr.config.overrides import key_of
from rlvr.config.overrides import read as read_override

FIRST_SEED = 1000  # default seed of tuning runs, far from the seeds of reported runs
PROBLEMS = 256  # problems of the validation split, where evaluation.validation is not set


@dataclass(frozen=True)
class TuningGrid:
    """values: the overrides of each value that is tried; seeds: of the tuning runs."""

    values: list[tuple[str, ...]]
    seeds: list[int]

    @property
    def keys(self) -> list[str]:
        return [word.split("=")[0] for word in self.values[0]]


def read(text: str, arms: Sequence[Sequence[str]]) -> TuningGrid:
    """`lr:1e-5,3e-5 seed:1000,1001`: knobs, crossed; the seeds are those of tuning. Raises ValueError."""
    axes: dict[str, list[str]] = {}
    for part in str(text).split():
        key, sign, values = part.partition(":")
        if key in axes:
            raise ValueError(f"tune={text}: {key} is written twice. Write all of its values in one place.")
        axes[key] = list(dict.fromkeys(value for value in values.split(",") if value))
        if not sign or not axes[key]:
            raise ValueError(f"tune={text}: write a knob and its values, as in tune=lr:1e-5,3e-5,1e-4.")
    seeds = axes.pop("seed", [str(FIRST_SEED)])
    if not all(seed.isdigit() for seed in seeds):
        raise ValueError(f"tune={text}: seeds are whole numbers, as in seed:1000,1001.")
    crossed = itertools.product(*axes.values()) if axes else ()
    tried = [tuple(f"{key}={value}" for key, value in zip(axes, row, strict=True)) for row in crossed]
    if len(tried) < 2:
        raise ValueError(f"tune={text} leaves nothing to choose from: pass two values or more.")
    for word in itertools.chain.from_iterable(tried):
        try:
            read_override(word)
        except ValueError as error:
            raise ValueError(f"tune={text}: {error}") from None
    typed = {key_of(word) for arm in arms for word in arm}
    if both := [key for key in axes if key in typed]:
        raise ValueError(f"{both[0]} is both tuned and set: drop {both[0]}=..., or drop it from tune.")
    return TuningGrid(tried, [int(seed) for seed in seeds])


def validation_overrides(master: DictConfig) -> list[str]:
    """Overrides of a tuning run that make it measure the validation split."""
    return [] if master.evaluation.validation else [f"evaluation.validation={PROBLEMS}"]


def rule(grid: TuningGrid, seeds: Sequence[int]) -> dict[str, Any]:
    """`tune` of sweep.json. seeds: of the reported runs; ValueError if tuning has one of them."""
    if shared := sorted({*grid.seeds} & {*seeds}):
        raise ValueError(
            f"seed {shared[0]} would tune and be reported: a value chosen under a seed looks better under it. Pass "
            f"other seeds for tuning, as in tune='... seed:{max(seeds) + FIRST_SEED}'."
        )
    return {"keys": grid.keys, "values": [" ".join(value) for value in grid.values], "seeds": grid.seeds, "picks": {}}


def pick(grid: Mapping[str, Any], scores: Mapping[str, float], runs: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """For each arm, by its place: the best value, and the mean score of every value over the tuning seeds.

    grid: the rule in sweep.json; scores: by run id; runs: (place of the arm, value) of each tuning run, by run id.

    A value with a run that has no score (it diverged, say) is not chosen; of equal values the one written first is. An
    arm without any such value has the value None.
    """
    picks: dict[str, Any] = {}
    for place in sorted({place for place, _ in runs.values()}):
        means: dict[str, float] = {}
        for value in grid["values"]:
            run_ids = [run_id for run_id, place_and_value in runs.items() if place_and_value == (place, value)]
            means[value] = sum(scores.get(run_id, math.nan) for run_id in run_ids) / len(run_ids)
        known = {value: mean for value, mean in means.items() if math.isfinite(mean)}
        best = max(known, key=lambda value: known[value], default=None)
        picks[str(place)] = {"value": best, "tried": {value: known.get(value) for value in means}}  # JSON has no NaN
    return picks
