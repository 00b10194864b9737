"""From what was typed to all that a growing sweep may come to, composed and checked before anything is written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig

from analysis.scores.claim import CLAIMS
from rlvr.config.overrides import key_of
from rlvr.ledger.identity import ADDED, EXPECTED, GROWTH
from rlvr.ledger.sweeps import TUNING, Ledger
from sweeps import controls
from sweeps.growing import results, stopping, tuning
from sweeps.growing.record import FINAL, Candidate, Record, called_anew, first_wave
from sweeps.past import mean_hours
from sweeps.plan import Plan
from sweeps.planned import evaluated

Settings = Sequence[Sequence[str]]  # overrides of each run
Compose = Callable[[Settings], Plan]  # of overrides, checked


def check(config: DictConfig, *, evaluates: bool) -> None:
    """ValueError for a budget of nothing, for what trains nothing, and for a control that tuning would undo."""
    if empty := [word for word in (*GROWTH, *ADDED) if config[word] == ""]:
        raise ValueError(f"{empty[0]}= has no value. Give it one, or drop it.")
    words = [word for word in (*GROWTH, *ADDED) if config[word]]
    if words and evaluates:
        raise ValueError(f"{words[0]} has no effect on an evaluation, which trains nothing. Drop it.")
    if config.budget and not config.until:
        raise ValueError(f"budget={config.budget} has no effect without until=decided. Add it, or drop budget.")
    tuned = tuning.read(str(config.tune), []).keys if config.tune else []
    if "lr" in tuned and controls.STILL in controls.read(str(config.controls or "")):
        raise ValueError("controls=still has lr=0, which tune=lr would replace. Drop still, or lr from tune.")


@dataclass(frozen=True)
class PairedPoints:
    """The points of a grid as arms and seeds: every arm gets every seed, so that all differences are paired."""

    arms: list[list[str]]
    seeds: list[int]

    @classmethod
    def of(cls, overrides: Settings, usual_seed: int) -> PairedPoints:
        arms, seeds = dict[tuple[str, ...], None](), set[int]()
        for point in overrides:
            own = [word for word in point if key_of(word) == "seed"]
            seeds.add(int(own[-1].split("=")[1]) if own else usual_seed)
            arms[tuple(word for word in point if key_of(word) != "seed")] = None
        return cls([list(arm) for arm in arms], sorted(seeds))

    def more(self, count: int) -> list[int]:
        """The seeds, and the numbers after them, so many in all."""
        return [*self.seeds, *range(self.seeds[-1] + 1, self.seeds[-1] + 1 + max(0, count - len(self.seeds)))]


def planned(master: DictConfig, overrides: Settings, ledger: Ledger, compose: Compose) -> tuple[Record, Plan]:
    """The record of this command, as it stands on the ledger or else as it would begin; and its first runs on paper.

    What is no part of a run's identity (cluster, tracker, ...) is the newest command's.
    ValueError: what is wrong, before anything is written.
    """
    points = PairedPoints.of(overrides, int(master.seed))
    _check_seeds(master, len(overrides), points)
    first = compose([[*arm, f"seed={points.seeds[0]}"] for arm in points.arms])
    sweep_id = _id(master, points, first)
    known = Record.found(ledger, sweep_id) if Record.stands(ledger, sweep_id) else None
    grid = tuning.read(master.tune, points.arms) if master.tune else None
    about: dict[str, Any] = {}
    spent = tuning.count(grid, points.arms) if grid else 0
    if master.until:
        about["until"] = known.info["until"] if known else _rule(master, points, ledger, spent, first)
        points = replace(points, seeds=points.more(about["until"]["seeds"][-1]))
    if grid:
        about["tune"] = tuning.rule(grid, points.seeds)
    candidates, base = _candidates(master, points, grid, compose)
    if known:
        if "until" in known.info and any(known.info.get(key) != base.about.get(key) for key in EXPECTED):
            print(
                "baseline and claims: those that the launch fixed stay. Another budget= begins anew.", file=sys.stderr
            )
        record = replace(known.composed_anew(candidates), info=called_anew(known.info, base.about))
        return record, plan_of(record, record.begun or first_wave(record))
    info = {**base.about, **about, "sweep_id": sweep_id, "created": time.time()}
    record = Record(ledger, sweep_id, info, candidates)
    return record, plan_of(record, first_wave(record))


def _check_seeds(master: DictConfig, given: int, points: PairedPoints) -> None:
    """ValueError for a rule that leaves seeds of some arms out. given: points of the grid."""
    if given == len(points.arms) * len(points.seeds):
        return
    for key in ("exclude", "zip", "when"):
        for line in master[key]:
            if re.search(r"\bseed\b", line):
                raise ValueError(f"{key}={line!r}: until and tune give every arm every seed. Drop seed from {key}.")


def _rule(master: DictConfig, points: PairedPoints, ledger: Ledger, spent: int, first: Plan) -> dict[str, Any]:
    """first: a run of each arm."""
    about = stopping.read_until(str(master.until), has_claims=bool(master.claims))
    if about not in ("", CLAIMS):
        _check_metric(about, first)
    if len(points.arms) < 2:
        raise ValueError("until=decided compares arms, and this sweep has one. Sweep a knob, as in loss=grpo,rloo.")
    budget = stopping.read_budget(master.budget)
    runs = budget.runs
    if runs is None:
        each = mean_hours(first.runs, ledger)
        if each is None:
            raise ValueError(
                f"budget={master.budget}: no finished run of the ledger is like these, so hours do not say how many "
                "runs that is. Pass the most runs, as in budget=24."
            )
        assert budget.hours is not None
        runs = int(budget.hours / each)
    found = stopping.rule(about, len(points.arms), len(points.seeds), runs, spent=spent)
    return {**found, "budget": str(master.budget), "hours": budget.hours}


def _check_metric(name: str, first: Plan) -> None:
    """ValueError for a metric that the evaluations of some arm do not measure."""
    settings = {repr((run.config["task"], run.config["evaluation"])): run.config for run in first.runs}
    for config in settings.values():
        with contextlib.suppress(InstantiationException):  # a dry run without the task's data, which it says
            results.check_metric(name, evaluated(config), config["evaluation"]["samples"])


def _candidates(
    master: DictConfig, points: PairedPoints, grid: tuning.Grid | None, compose: Compose
) -> tuple[list[Candidate], Plan]:
    """Every run that may be wanted, and the plan that they are of."""
    rows: list[tuple[list[str], dict[str, Any]]] = []
    for place, arm in enumerate(points.arms):
        for value in grid.values if grid else [()]:
            told = {"place": place, "value": " ".join(value)}
            for seed in grid.seeds if grid else []:
                tried = [*arm, *value, *tuning.measured(master), f"seed={seed}"]
                rows.append((tried, {**told, "seed": seed, "stage": TUNING}))
            rows += [([*arm, *value, f"seed={seed}"], {**told, "seed": seed, "stage": FINAL}) for seed in points.seeds]
    base = compose([words for words, _ in rows])
    return [Candidate(run, **about) for run, (_, about) in zip(base.runs, rows, strict=True)], base


def plan_of(record: Record, runs: Sequence[Candidate]) -> Plan:
    info: Mapping[str, Any] = record.info
    chosen = tuple(each.run for each in runs)
    folders = tuple(info.get("config_dirs", ()))
    return Plan(record.sweep_id, info["study"], info["command"], chosen, info.get("question", ""), folders)


def _id(master: DictConfig, points: PairedPoints, first: Plan) -> str:
    """8 hexadecimal digits of what defines the sweep: the same command finds it again. first: a run of each arm."""
    told = {key: str(master[key]) for key in ("until", "budget", "tune") if master[key]}
    parts = {**told, "study": first.study, "seeds": points.seeds, "runs": sorted(run.run_id for run in first.runs)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
