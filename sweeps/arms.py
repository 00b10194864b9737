"""Summaries of a sweep's runs: of each arm (runs that differ by their seed alone), and of all runs together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState


@dataclass(frozen=True)
class RunTotals:
    """Totals over a set of runs. Hours are GPU-hours for runs with GPUs, else hours of runs."""

    name: str
    runs: int
    states: dict[str, int]
    step: int  # steps done, summed over all runs
    steps: int  # steps planned, summed over all runs
    accuracy: float | None  # mean over the runs that were evaluated
    rate: float | None  # steps per second, summed over the running runs
    eta: float | None  # seconds until the running and queued runs end, without start-up of those that wait
    attempts: int
    hours_useful: float
    hours_replayed: float
    hours_wasted: float


def arms(states: Iterable[RunState]) -> list[RunTotals]:
    """One summary for each arm, in order of appearance.

    An arm with queued runs has no eta: whether the next to start is one of them is not known here.
    """
    groups: dict[str, list[RunState]] = {}
    for state in states:
        groups.setdefault(state.group_id or state.run_id, []).append(state)
    totals = [total(group[0].arm or group[0].name, group) for group in groups.values()]
    return [replace(arm, eta=None) if arm.states.get(State.QUEUED) else arm for arm in totals]


def mixed_code(states: Iterable[RunState]) -> list[str]:
    """A line for each arm whose runs, or attempts, did not all use the same code and data."""
    names: dict[tuple[str, str], dict[str, list[str]]] = {}  # by arm and code, the runs
    for state in states:
        if state.code:
            arm = (state.group_id, state.arm or state.name)
            names.setdefault(arm, {}).setdefault(state.code, []).append(state.name)
    lines: list[str] = []
    for (_, arm), of_arm in names.items():
        if len(of_arm) > 1 or any(", then " in code for code in of_arm):
            shown = [f"{code} in {', '.join(runs[:3])}{', ...' * (len(runs) > 3)}" for code, runs in of_arm.items()]
            lines.append(f"{arm}: its code or data changed: {'; '.join(shown)}. `python -m analysis` says what.")
    return lines


def total(name: str, states: Sequence[RunState]) -> RunTotals:
    """The summary of these runs."""
    accuracies = [state.accuracy for state in states if state.accuracy is not None]
    running = [state for state in states if state.state is State.RUNNING]
    queued = [state for state in states if state.state is State.QUEUED]
    rates = [state.rate for state in running if state.rate is not None]
    etas = [state.eta for state in running if state.eta is not None]
    # The steps of a run that has not begun are unknown (0): the largest number among the other runs is used.
    most_steps = max((state.steps for state in states), default=0)
    if queued and rates:  # as many runs at once as now, at their rate
        etas.append(sum((state.steps or most_steps) - state.step for state in (*running, *queued)) / sum(rates))
    return RunTotals(
        name,
        len(states),
        dict(Counter(state.state for state in states)),
        sum(state.step for state in states),
        sum(state.steps or most_steps for state in states),
        sum(accuracies) / len(accuracies) if accuracies else None,
        sum(rates) if rates else None,
        max(etas, default=None),
        sum(state.attempt for state in states),
        *(sum(state.hours[kind] for state in states) for kind in range(3)),
    )
