"""What a sweep that grows asks of its own results: the rule to look by, how questions stand, which value was best.

Plain data in and out: a launch imports this by name, once there is something to ask (sweeps/growing/results.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.frames.load import catalogue, frames
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.metric import check_ahead
from analysis.scores.question import Question, questions
from analysis.scores.sequential import levels, schedule
from analysis.scores.tuning import run_scores
from rlvr.ledger.sweeps import Sweep


def least_seeds(first: int) -> int:
    """Seeds of the first look, where so many were asked for."""
    return max(first, LEAST_SEEDS)


def rule(first: int, last: int, parts: int) -> dict[str, Any]:
    """The looks from the first number of seeds to the last, where so many differences share the 5 %."""
    seeds, alpha = schedule(first, last), 1 - LEVEL
    spending = "O'Brien-Fleming type (Lan and DeMets 1983)"
    shared = {"alpha": alpha, "spending": spending, "parts": parts}
    return {**shared, "seeds": seeds, "levels": levels(seeds, alpha / parts)}


def check_metric(name: str, evaluations: Sequence[str], samples: int) -> None:
    """LookupError for a metric that runs with these evaluations will not measure."""
    check_ahead(name, evaluations, samples)


def look(home: Path, sweep_id: str, about: str, level: float, closed: Collection[str]) -> list[dict[str, Any]]:
    """How each question of a sweep stands at this nominal level. closed: names of those decided before."""
    found = questions(frames(catalogue(home), sweep=sweep_id), about, 1 - level, closed)
    return [{"name": q.name, "outcome": q.outcome, "measured": q.measured, "groups": list(q.groups)} for q in found]


def forecast(
    home: Path, sweep: Sweep, about: str, seeds: Sequence[int], nominal: Sequence[float]
) -> list[dict[str, Any]]:
    """How each question stands by the runs of a sweep that need not be on the ledger, and the chance (NaN: not known)
    that it is decided by each look."""
    there = catalogue(home)
    others = [each for each in there.sweeps if each.sweep_id != sweep.sweep_id]
    found = questions(frames(replace(there, sweeps=[*others, sweep]), sweep=sweep.sweep_id), about, LEVEL)
    return [_forecast(question, seeds, nominal) for question in found]


def _forecast(question: Question, seeds: Sequence[int], nominal: Sequence[float]) -> dict[str, Any]:
    return {"name": question.name, "measured": question.measured, "chances": question.chances(seeds, nominal)}


def tuning_scores(home: Path, sweep_id: str) -> Mapping[str, float]:
    """By tuning run, its score on the validation split; NaN for one without."""
    found = frames(catalogue(home), sweep=sweep_id)
    return run_scores(found.tuned or found)
