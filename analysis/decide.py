"""Decisions about a growing sweep from its own results: the stopping rule, the state of its questions, tuning scores.

Plain data in and out: sweeps/growing asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.frames.load import catalogue, frames
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.metric import TIMES, check_ahead
from analysis.scores.question import Question, questions
from analysis.scores.sequential import levels, schedule
from analysis.scores.trajectory import OWN_GPUS, SHARED_TIME
from analysis.scores.tuning import run_scores
from rlvr.ledger.sweeps import Sweep


def least_seeds(first: int) -> int:
    """Number of seeds of the first look. first: the number that was requested."""
    return max(first, LEAST_SEEDS)


def rule(first: int, last: int, parts: int) -> dict[str, Any]:
    """The stopping rule with looks from `first` to `last` seeds. parts: number of differences that share the 5 %."""
    seeds, alpha = schedule(first, last), 1 - LEVEL
    spending = "O'Brien-Fleming type (Lan and DeMets 1983)"
    shared = {"alpha": alpha, "spending": spending, "parts": parts}
    return {**shared, "seeds": seeds, "levels": levels(seeds, alpha / parts)}


def check_metric(name: str, evaluations: Sequence[str], samples: int, *, own_gpus: bool) -> None:
    """Raises LookupError for a metric that runs with these evaluations will not measure, and for one of time that no
    number of seeds would decide. samples: per problem. own_gpus: whether SLURM allocates each run GPUs of its own.
    """
    check_ahead(name, evaluations, samples)
    if name.startswith(TIMES) and not own_gpus:
        raise LookupError(
            f"--metrics {name} would never be decided: {SHARED_TIME}. Name another metric, or set {OWN_GPUS}."
        )


def look(
    home: Path, sweep_id: str, about: str, level: float, closed: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The outcome of each question of a sweep at this nominal level. closed: those of questions decided before."""
    open_questions = questions(frames(catalogue(home), sweep=sweep_id), about, 1 - level, closed)
    return [
        {"name": q.name, "outcome": q.outcome, "measured": q.measured, "groups": list(q.groups)} for q in open_questions
    ]


def forecast(
    home: Path, sweep: Sweep, about: str, seeds: Sequence[int], nominal: Sequence[float]
) -> list[dict[str, Any]]:
    """For each question of a sweep, which need not be in the ledger yet: what its runs have measured, and the chance
    (NaN: not known) that the question is decided by each look."""
    listing = catalogue(home)
    others = [other for other in listing.sweeps if other.sweep_id != sweep.sweep_id]
    with_sweep = frames(replace(listing, sweeps=[*others, sweep]), sweep=sweep.sweep_id)
    return [_forecast(question, seeds, nominal) for question in questions(with_sweep, about, LEVEL)]


def _forecast(question: Question, seeds: Sequence[int], nominal: Sequence[float]) -> dict[str, Any]:
    return {"name": question.name, "measured": question.measured, "chances": question.chances(seeds, nominal)}


def tuning_scores(home: Path, sweep_id: str) -> Mapping[str, float]:
    """By id of a tuning run, its score on the validation split; NaN for a run without one."""
    of_sweep = frames(catalogue(home), sweep=sweep_id)
    return run_scores(of_sweep.tuned or of_sweep)
