"""Checks, before a launch, that the planned arms can test what a study expects of them (`baseline`, `claims`).

Plain data in and out: a launch imports this module if its study expects anything (sweeps/expected.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.frames import rows
from analysis.frames.runs import RunRecord, flat_config, runs_frame
from analysis.scores.arm import Arm, arms_of, settings
from analysis.scores.claim import Where, read
from analysis.scores.labels import alternatives, parse
from analysis.scores.metric import TIMES, check_ahead
from analysis.scores.selection import reference_of_claim, select, untested
from analysis.scores.trajectory import OWN_GPUS, SHARED_TIME


@dataclass(frozen=True)
class PlannedArm:
    """A planned arm, described by one of its runs: the overrides as typed, and the config."""

    sweep_id: str
    group_id: str
    typed: tuple[str, ...]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Untestable:
    """An expectation that the planned arms cannot test.

    what: `baseline`, or `claim 2`. why: the reason, as a report words it. absent: selectors that match no arm.
    compares_to_itself: whether the claim compares an arm to itself.
    """

    what: str
    why: str
    absent: tuple[str, ...] = ()
    compares_to_itself: bool = False


def labels(planned: Sequence[PlannedArm]) -> list[str]:
    """The label of each arm, once."""
    return list(dict.fromkeys(arm.label or "the only arm" for arm in _arms(planned)))


def selectors(baseline: str, claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, list[str]]]]:
    """(place, alternatives of each knob) of every selector. Raises ValueError for a selector that names no knob."""
    placed = [("baseline", baseline)] if baseline else []
    for number, claim in enumerate(map(read, claims), start=1):
        for name, selector in (("arm", claim.arm), ("against", claim.against)):
            if selector:
                placed.append((f"claim {number}, {name}", selector))
    return [(place, _alternatives(place, selector)) for place, selector in placed]


def _alternatives(place: str, selector: str) -> dict[str, list[str]]:
    try:
        return {key: alternatives(value) for key, value in parse(selector).items()}
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def untestable(planned: Sequence[PlannedArm], baseline: str, claims: Sequence[Mapping[str, Any]]) -> list[Untestable]:
    """The expectations that these arms cannot test."""
    arms = _arms(planned)
    failures = [Untestable("baseline", f"no arm has {baseline}", (baseline,))] if _absent(arms, [baseline]) else []
    by_setting = settings(arms).values()
    for number, claim in enumerate(map(read, claims), start=1):
        reference = reference_of_claim(claim, baseline)
        reasons = [untested(claim, reference, arms_here) for arms_here in by_setting if select(arms_here, claim.arm)]
        if reasons and not all(reasons):
            continue
        absent = _absent(arms, [claim.arm, *([] if claim.knob else [reference])])
        why = " and ".join(f"no arm has {selector}" for selector in absent) or reasons[0]
        itself = not claim.knob and parse(claim.arm) == parse(reference)
        failures.append(Untestable(f"claim {number}", why, absent, itself and not absent))
    return failures


def _absent(arms: Sequence[Arm], selectors: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(selector for selector in selectors if selector and not select(arms, selector)))


def _arms(planned: Sequence[PlannedArm]) -> list[Arm]:
    firsts = {arm.group_id: arm for arm in planned}
    records = [RunRecord(i, i, overrides=arm.typed, config=flat_config(dict(arm.config))) for i, arm in firsts.items()]
    return arms_of(rows(runs_frame(records, {i: arm.sweep_id for i, arm in firsts.items()})))


def untestable_times(claims: Sequence[Mapping[str, Any]]) -> str:
    """A message on the claims about time, for runs without GPUs of their own; "" if there are none."""
    timed = [n for n, c in enumerate(map(read, claims), start=1) if c.at == Where.SECONDS or c.metric.startswith(TIMES)]
    if not timed:
        return ""
    numbers = f"claim {timed[0]}" if len(timed) == 1 else f"claims {', '.join(map(str, timed))}"
    return f"These runs cannot test {numbers}: {SHARED_TIME}. To test such claims, set {OWN_GPUS}."


def unmeasured(claims: Sequence[Mapping[str, Any]], evaluations: Sequence[tuple[Sequence[str], int]]) -> str:
    """A message on the first claim whose metric no planned run measures; "" if there is none.

    evaluations: of each kind of run, the metric names that it logs and its number of samples per problem.
    """
    for number, claim in enumerate(map(read, claims), start=1):
        reasons = [_not_measured(claim.metric, names, samples) for names, samples in evaluations]
        if reasons and all(reasons):
            return f"claim {number}: {reasons[0]}"
    return ""


def _not_measured(metric: str, names: Sequence[str], samples: int) -> str:
    try:
        check_ahead(metric, names, samples)
    except LookupError as error:
        message = str(error.args[0]).replace("no run measured it", "no run of this launch measures it")
        return message.replace("--metrics ", "metric: ")
    return ""
