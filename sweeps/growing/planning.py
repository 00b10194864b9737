"""Plans a growing sweep: every run that it may need is composed and checked before anything is written."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from analysis import decide
from analysis.scores.claim import CLAIMS
from rlvr.config.overrides import key_of, seed_of
from rlvr.ledger.cause import State
from rlvr.ledger.identity import EXPECTED, hash_of
from rlvr.ledger.sweeps import TUNING, Ledger, Sweep
from sweeps.growing import stopping, tuning
from sweeps.growing.record import FINAL, Candidate, GrowingRecord
from sweeps.past import mean_hours
from sweeps.plan import Plan
from sweeps.planned import base_policies, evaluations

Settings = Sequence[Sequence[str]]  # overrides of each run
Compose = Callable[[Settings], Plan]  # composes and checks a run for each of these overrides


@dataclass(frozen=True)
class PairedPoints:
    """The points of a grid as arms and seeds: every arm gets every seed, so that all differences are paired."""

    arms: list[list[str]]
    seeds: list[int]

    @classmethod
    def of(cls, overrides: Settings, usual_seed: int) -> PairedPoints:
        arms, seeds = dict[tuple[str, ...], None](), set[int]()
        for point in overrides:
            typed_seeds = [word for word in point if key_of(word) == "seed"]
            seeds.add(seed_of(typed_seeds[-1]) if typed_seeds else usual_seed)
            arms[tuple(word for word in point if key_of(word) != "seed")] = None
        return cls([list(arm) for arm in arms], sorted(seeds))

    def more(self, count: int) -> list[int]:
        """`count` seeds: these, and the numbers after the largest."""
        first = self.seeds[-1] + 1
        return [*self.seeds, *range(first, first + max(0, count - len(self.seeds)))]


def planned(master: DictConfig, overrides: Settings, ledger: Ledger, compose: Compose) -> tuple[GrowingRecord, Plan]:
    """The record of this command, from the ledger or else a new one, and the plan of its runs so far, or of its first.

    Settings that are no part of a run's identity (cluster, tracker, ...) are those of this command. Writes nothing.
    Raises ValueError for an error of the user.
    """
    points = PairedPoints.of(overrides, int(master.seed))
    _check_seeds(master, len(overrides), points)
    first = compose([[*arm, f"seed={points.seeds[0]}"] for arm in points.arms])
    sweep_id = _id(master, points, first)
    known = GrowingRecord.known(ledger, sweep_id)
    grid = tuning.read(master.tune, points.arms) if master.tune else None
    about: dict[str, Any] = {}
    spent = len(points.arms) * len(grid.values) * len(grid.seeds) if grid else 0  # runs of tuning
    if master.until:
        about["until"] = known.info["until"] if known else _rule(master, points, ledger, spent, first)
        points = replace(points, seeds=points.more(about["until"]["seeds"][-1]))
    if grid:
        about["tune"] = tuning.rule(grid, points.seeds)
    candidates, base = _candidates(master, points, grid, compose)
    info = {**base.about, **about, "sweep_id": sweep_id, "created": time.time()}
    record = GrowingRecord(ledger, sweep_id, info, candidates)
    if known:
        changed = any((known.info.get(key) or None) != (base.about.get(key) or None) for key in EXPECTED)
        if "until" in known.info and changed:
            print(
                "baseline and claims stay as the first launch fixed them. Another budget= begins another sweep.",
                file=sys.stderr,
            )
        record = record.continuing(known)
    return record, plan_of(record, record.begun or stopping.next_wave(record))


def _check_seeds(master: DictConfig, num_points: int, points: PairedPoints) -> None:
    """ValueError for a rule that leaves out seeds of some arms. num_points: of the grid."""
    if num_points == len(points.arms) * len(points.seeds):
        return
    for key in ("exclude", "zip", "when", "also"):
        for line in master[key]:
            if re.search(r"\bseed\b", line):
                raise ValueError(f"{key}={line!r}: until and tune give every arm every seed. Drop seed from {key}.")


def _rule(master: DictConfig, points: PairedPoints, ledger: Ledger, spent: int, first: Plan) -> dict[str, Any]:
    """The stopping rule, as sweep.json keeps it. spent: runs of tuning; first: a run of each arm."""
    about, best = stopping.read_until(str(master.until), has_claims=bool(master.claims))
    if about != CLAIMS and (about or best is not None):
        _check_metric(about, first, best)
    if len(points.arms) < 2:
        raise ValueError("until= compares arms, and this sweep has one. Sweep a knob, as in loss=grpo,rloo.")
    if about == CLAIMS and all(len(bases) == 2 for bases in base_policies(first.runs)):
        raise ValueError(
            "until=decided judges claims over all base policies, and two decide nothing, whatever their seeds. Pass "
            "one, or at least three, as in model.seed=0,1,2; or a metric, which each decides alone: until=decided:pass."
        )
    budget = stopping.read_budget(master.budget)
    runs = budget.runs
    if runs is None:
        hours_per_run = mean_hours(first.runs, ledger)
        if hours_per_run is None:
            raise ValueError(
                f"budget={master.budget}: no finished run of the ledger is like these, so hours cannot be converted to "
                "a number of runs. Pass the most runs, as in budget=24."
            )
        assert budget.hours is not None
        runs = int(budget.hours / hours_per_run)
    rule = stopping.rule(about, len(points.arms), len(points.seeds), runs, spent=spent, best=best)
    return {**rule, "budget": str(master.budget), "hours": budget.hours}


def _check_metric(name: str, first: Plan, best: float | None) -> None:
    """ValueError for a metric that the evaluations of some arm do not measure, or that is decided only on GPUs, or of
    which no value is the best.
    """
    for names, samples in filter(None, evaluations(first.runs)):
        with stopping.naming_until(best):
            decide.check_metric(name, names, samples, own_gpus=first.own_gpus, best=best is not None)


def _candidates(
    master: DictConfig, points: PairedPoints, grid: tuning.TuningGrid | None, compose: Compose
) -> tuple[list[Candidate], Plan]:
    """Every run that the sweep may need, and the plan of all of them."""
    rows: list[tuple[list[str], dict[str, Any]]] = []
    for place, arm in enumerate(points.arms):
        for value in grid.values if grid else [()]:
            about = {"place": place, "value": " ".join(value)}
            for seed in grid.seeds if grid else []:
                overrides = [*arm, *value, *tuning.validation_overrides(master), f"seed={seed}"]
                rows.append((overrides, {**about, "seed": seed, "stage": TUNING}))
            rows += [([*arm, *value, f"seed={seed}"], {**about, "seed": seed, "stage": FINAL}) for seed in points.seeds]
    base = compose([overrides for overrides, _ in rows])
    return [Candidate(run, **about) for run, (_, about) in zip(base.runs, rows, strict=True)], base


def plan_of(record: GrowingRecord, candidates: Sequence[Candidate]) -> Plan:
    info: Mapping[str, Any] = record.info
    runs = tuple(candidate.run for candidate in candidates)
    folders = tuple(info.get("config_dirs", ()))
    return Plan(record.sweep_id, info["study"], info["command"], runs, info.get("question", ""), folders)


def _id(master: DictConfig, points: PairedPoints, first: Plan) -> str:
    """8 hexadecimal digits of a hash of all that defines the sweep, so that the same command has the same id.

    first: a run of each arm.
    """
    growth = {key: str(master[key]) for key in ("until", "budget", "tune") if master[key]}
    parts = {**growth, "study": first.study, "seeds": points.seeds, "runs": sorted(run.run_id for run in first.runs)}
    return hash_of(parts, 8)


# --- the likely cost


def forecast(record: GrowingRecord) -> list[str]:
    """The likely cost of a sweep, for `--dry-run`: from the results that its runs have already."""
    hours = mean_hours([candidate.run for candidate in record.candidates], record.ledger)
    text = [_tuning_line(record, hours)] if "tune" in record.info else []
    if "until" not in record.info:
        return text
    rule: dict[str, Any] = record.info["until"]
    for index in range(len(rule["looks"])):
        text += stopping.lines_of_newest_look({**rule, "looks": rule["looks"][: index + 1]})
    if rule["stopped"]:
        return [*text, f"Stopped: {rule['stopped']}."]
    questions = [] if "tune" in record.info else _questions(record, rule)
    num_arms = len({candidate.place for candidate in record.candidates})
    spent = sum(candidate.stage == TUNING for candidate in record.candidates)
    config, home = record.candidates[0].run.config, record.ledger.home
    foreseen = [] if questions else [decide.foreseen(home, config, rule["about"], rule)]
    return [*text, *stopping.forecast(rule, questions, num_arms, hours, spent=spent), *filter(None, foreseen)]


def _tuning_line(record: GrowingRecord, hours: float | None) -> str:
    rule = record.info["tune"]
    runs = [candidate for candidate in record.candidates if candidate.stage == TUNING]
    num_arms = len({candidate.place for candidate in runs})
    num_final = len({candidate.seed for candidate in record.candidates if candidate.stage == FINAL}) * num_arms
    tried = f"{len(rule['values'])} values ({', '.join(rule['values'])}), seeds {', '.join(map(str, rule['seeds']))}"
    text = f"Tuning: {tried}, for each of {num_arms} arms: {stopping.cost(len(runs), hours)}"
    then = "" if "until" in record.info else f"; then {stopping.cost(num_final, hours)} with the best value of each arm"
    return f"{text}{then}."


def _questions(record: GrowingRecord, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """The forecast of each question from the runs that have finished; [] where none has."""
    states = record.ledger.states([candidate.run.run_id for candidate in record.candidates])
    finished = {state.run_id for state in states if state.state is State.FINISHED}
    runs = [candidate.run for candidate in record.candidates if candidate.run.run_id in finished]
    if not runs:
        return []
    about = {key: value for key, value in record.info.items() if key != "until"}
    lines = tuple(run.line(index, run.overrides) for index, run in enumerate(runs))
    sweep = Sweep(record.sweep_id, about, lines)
    try:
        return decide.forecast(record.ledger.home, sweep, rule)
    except LookupError:  # nothing is measured yet
        return []
