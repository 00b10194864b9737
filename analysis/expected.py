"""Whether planned arms can test what a study expects of them (`baseline`, `claims`): before anything is paid for.

Plain data in and out: a launch imports this by name, where something is expected (sweeps/expected.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.run import rows
from analysis.frames.runs import RunRecord, flat_config, runs_frame
from analysis.scores import words
from analysis.scores.arm import Arm, arms_of, settings
from analysis.scores.claim import Claim, read
from analysis.scores.metric import check_ahead
from analysis.scores.selection import select
from analysis.scores.sides import NotTested, reference_of, sides, trend


@dataclass(frozen=True)
class PlannedArm:
    """A run of it: what was typed, and its config."""

    sweep_id: str
    group_id: str
    typed: tuple[str, ...]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Untestable:
    """what: `baseline`, or `claim 2`. why: the words of a report. absent: what no arm has. itself: it has one side."""

    what: str
    why: str
    absent: tuple[str, ...] = ()
    itself: bool = False


def labels(planned: Sequence[PlannedArm]) -> list[str]:
    """What arms are called."""
    return list(dict.fromkeys(arm.label or "the only arm" for arm in _arms(planned)))


def selectors(baseline: str, claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, list[str]]]]:
    """Where knobs are named, and the alternatives of each. ValueError for what names none."""
    found = [("baseline", baseline)] if baseline else []
    for number, claim in enumerate(map(read, claims), start=1):
        found += [(f"claim {number}, {name}", text) for name in ("arm", "against") if (text := getattr(claim, name))]
    return [(where, _alternatives(where, text)) for where, text in found]


def _alternatives(where: str, text: str) -> dict[str, list[str]]:
    try:
        return {key: value.split(",") for key, value in words.parse(text).items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def untestable(planned: Sequence[PlannedArm], baseline: str, claims: Sequence[Mapping[str, Any]]) -> list[Untestable]:
    """Of what is expected, what these arms cannot test."""
    arms = _arms(planned)
    found = [Untestable("baseline", f"no arm has {baseline}", (baseline,))] if _absent(arms, [baseline]) else []
    for number, claim in enumerate(map(read, claims), start=1):
        reference = reference_of(claim, baseline)
        reasons = [
            _reason(claim, reference, here)
            for here in ([arm for arm in arms if arm.setting == name] for name in settings(arms))
            if select(here, claim.arm)
        ]
        if reasons and not all(reasons):
            continue
        absent = _absent(arms, [claim.arm, *([] if claim.knob else [reference])])
        why = " and ".join(f"no arm has {each}" for each in absent) or reasons[0]
        itself = not claim.knob and words.parse(claim.arm) == words.parse(reference)
        found.append(Untestable(f"claim {number}", why, absent, itself and not absent))
    return found


def _reason(claim: Claim, reference: str, here: Sequence[Arm]) -> str:
    """Why a claim cannot be tested by the arms of one setting; "" if it can."""
    try:
        _ = trend(claim, here) if claim.knob else sides(claim, reference, here)
    except NotTested as why:
        return str(why)
    return ""


def _absent(arms: Sequence[Arm], asked: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in asked if each and not select(arms, each)))


def _arms(planned: Sequence[PlannedArm]) -> list[Arm]:
    firsts = {arm.group_id: arm for arm in planned}
    records = [RunRecord(i, i, overrides=arm.typed, config=flat_config(dict(arm.config))) for i, arm in firsts.items()]
    return arms_of(rows(runs_frame(records, {i: arm.sweep_id for i, arm in firsts.items()})))


def unmeasured(claims: Sequence[Mapping[str, Any]], evaluations: Sequence[tuple[Sequence[str], int]]) -> str:
    """What is wrong with the first claim whose metric no planned run measures; "" if none. evaluations: of each kind of
    run, the names that it logs and its samples of a problem."""
    for number, claim in enumerate(map(read, claims), start=1):
        reasons = [_not_measured(claim.metric, names, samples) for names, samples in evaluations]
        if reasons and all(reasons):
            return f"claim {number}: {reasons[0]}"
    return ""


def _not_measured(metric: str, names: Sequence[str], samples: int) -> str:
    try:
        check_ahead(metric, names, samples)
    except LookupError as error:
        told = str(error.args[0]).replace("no run measured it", "no run of this launch measures it")
        return told.replace("--metrics ", "metric: ")
    return ""
