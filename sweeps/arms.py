"""Runs of a sweep summed up: by arm (runs that differ by their seed alone) and all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState


@dataclass(frozen=True)
class Sum:
    """What some runs come to. Hours are GPU-hours where a run has GPUs, else hours of a run."""

    name: str
    runs: int
    states: dict[str, int]
    step: int  # of all runs together, as `steps`
    steps: int
    accuracy: float | None  # mean of the runs that were evaluated
    rate: float | None  # steps per second of the runs at work, together
    eta: float | None  # seconds, of the slowest run at work
    attempts: int
    hours_useful: float
    hours_replayed: float
    hours_wasted: float


def arms(states: Iterable[RunState]) -> list[Sum]:
    """One for each arm, in order of appearance."""
    groups: dict[str, list[RunState]] = {}
    for state in states:
        groups.setdefault(state.group_id or state.run_id, []).append(state)
    return [total(group[0].arm or group[0].name, group) for group in groups.values()]


def total(name: str, states: Sequence[RunState]) -> Sum:
    """All of some runs."""
    accuracies = [state.accuracy for state in states if state.accuracy is not None]
    at_work = [state for state in states if state.state is State.RUNNING]
    rates, etas = [s.rate for s in at_work if s.rate is not None], [s.eta for s in at_work if s.eta is not None]
    # A run that has not begun says nothing of its steps: those of its siblings are taken.
    most = max((state.steps for state in states), default=0)
    return Sum(
        name,
        len(states),
        dict(Counter(state.state for state in states)),
        sum(state.step for state in states),
        sum(state.steps or most for state in states),
        sum(accuracies) / len(accuracies) if accuracies else None,
        sum(rates) if rates else None,
        max(etas, default=None),
        sum(state.attempt for state in states),
        *(sum(state.hours[kind] for state in states) for kind in range(3)),
    )
