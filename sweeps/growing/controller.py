"""From one wave to the next: decide what the runs at hand decide, record it, and begin what follows.

`advance` is an idempotent pass over the ledger. Here the launcher calls it between waves; on SLURM the last job of a
wave does (sweeps/slurm/job_of_report.py), and hands in the next. Whoever repeats the command calls it too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.sweeps import TUNING, Ledger
from sweeps.growing import results, stopping, tuning
from sweeps.growing.record import FINAL, Candidate, Record, first_wave, wave_seeds
from sweeps.verdict import Outcome

ENDED = (State.FINISHED, State.DIVERGED)  # what ended otherwise is no result: it is tried again first
LOCK_S = 60.0
ALONE = "fewer than two arms have a result at any value, and nothing can be compared"


def has_results(home: Path, sweep_id: str) -> bool:
    """Whether every run begun has ended with one. What failed is tried again by the user alone, not for ever."""
    ledger = Ledger(home)
    open_runs = [state for state in ledger.states(ledger.sweep(sweep_id).run_ids) if state.state not in ENDED]
    for state in open_runs:
        print(f"{state.name}: {state.state}: the sweep waits for it; the same command goes on.", flush=True)
    return not open_runs


class Taken(ValueError):
    """Another process decides what comes next in a sweep."""


@contextlib.contextmanager
def owned(ledger: Ledger, sweep_id: str, wait_s: float = 0.0) -> Generator[None, None, None]:
    """One process at a time decides. Raises Taken if another does."""
    target = ledger.sweep_dir(sweep_id)
    target.mkdir(parents=True, exist_ok=True)
    held = lock(layout.deciding_lock(target), wait_s)
    if held is None:
        raise Taken(
            f"another process decides what comes next in this sweep ({layout.deciding_lock(target)}). Look at it: "
            f"python -m sweeps watch {sweep_id}"
        )
    try:
        yield
    finally:
        unlock(held)


def grow(ledger: Ledger, sweep_id: str, start: Callable[[], Outcome], say: Callable[[str], None] = print) -> Outcome:
    """All waves, here, one after the other. start: works on what has not finished of the sweep, to its end.

    Returns how the last wave ended; one that was stopped, or has failed runs, is not looked at: the same command
    goes on.
    """
    with owned(ledger, sweep_id):
        outcome = Outcome()
        while wanted := advance(ledger, sweep_id, say):
            outcome = start()
            open_runs = [state for state in ledger.states(wanted) if state.state not in ENDED]
            if outcome.interrupted or open_runs:
                missing = f"{len(open_runs)} runs of this wave have no result yet: the same command goes on with them."
                say(missing if open_runs else "Interrupted: the same command goes on.")
                return outcome
        if not outcome.finished and not outcome.skipped:
            outcome.skipped = [line["run_id"] for line in ledger.sweep(sweep_id).runs]
        return outcome


def advance(ledger: Ledger, sweep_id: str, say: Callable[[str], None] = print) -> list[str]:
    """Decide all that can be decided, and begin what follows. Returns the runs that are wanted; [] when all is done.

    Hold `owned`. A decision is on the ledger before anything follows from it.
    """
    record = Record.read(ledger, sweep_id)
    while True:
        wave = _wanted(record)
        if not wave:
            say(_end(record))
            return []
        record.begin(wave)
        ids = [each.run.run_id for each in record.begun]
        if any(state.state not in ENDED for state in ledger.states(ids)):
            return ids
        if not _decide(record, say):
            say(_end(record))
            return []


def _wanted(record: Record) -> list[Candidate]:
    """The runs that the decisions so far ask for; [] where nothing more is."""
    tune, until = record.info.get("tune"), record.info.get("until")
    if tune and not tune["picks"]:
        return first_wave(record)
    if until is None:
        return _final(record)
    if until["stopped"]:
        return []
    number = len(until["looks"])
    seeds = wave_seeds(record)[: until["seeds"][number]]
    wave = [each for each in _final(record) if each.seed in seeds]
    return [each for each in wave if not number or each.run.group_id in stopping.open_groups(until)]


def _final(record: Record) -> list[Candidate]:
    """The runs that are reported, of the values that were picked; none of an arm without such a value."""
    tune: dict[str, Any] = record.info.get("tune") or {"picks": {}}
    picks = tune["picks"]
    found = [each for each in record.candidates if each.stage == FINAL]
    return [each for each in found if not picks or each.value == picks[str(each.place)]["value"]]


def _decide(record: Record, say: Callable[[str], None]) -> bool:
    """Take the next decision, now that all that was begun has ended. False if none is left."""
    tune, until = record.info.get("tune"), record.info.get("until")
    if tune and not tune["picks"]:
        _pick(record, tune)
        for place, pick in tune["picks"].items():
            tried = f"{', '.join(map(_score, pick['tried'].items()))} ({_arm(record, place)})"
            if pick["value"] is None:
                say(f"Left out: an arm without a result at any value: {tried}. Launch it with other values of tune.")
            else:
                say(f"Tuned: {pick['value']} of {tried}")
        if until is not None and sum(pick["value"] is not None for pick in tune["picks"].values()) < 2:
            until["stopped"] = ALONE
            record.save()
        return True
    if until is None:
        return False
    until["looks"].append(stopping.look(until, record.ledger.home, record.sweep_id))
    until["stopped"] = stopping.stopped(until) or _over_hours(record, until)
    record.save()
    for line in stopping.in_words(until):
        say(line)
    return True


def _score(tried: tuple[str, float | None]) -> str:
    value, score = tried
    return f"{value} {'no result' if score is None else f'{100 * score:.1f} %'}"


def _arm(record: Record, place: str) -> str:
    return next(each.run.arm for each in record.candidates if each.place == int(place) and each.stage == TUNING)


def _pick(record: Record, tune: dict[str, Any]) -> None:
    scores = results.tuning_scores(record.ledger.home, record.sweep_id)
    runs = {each.run.run_id: (each.place, each.value) for each in record.candidates if each.stage == TUNING}
    tune["picks"] = tuning.pick(tune, scores, runs)
    record.save()


def _over_hours(record: Record, until: Mapping[str, Any]) -> str:
    """ "budget spent" if another wave, at the pace of the runs so far, costs more hours than there are."""
    if until["hours"] is None:
        return ""
    took = [state.seconds / 3600 for state in record.ledger.states([each.run.run_id for each in record.begun])]
    begun = {each.run.run_id for each in record.begun}
    fresh = [each for each in _wanted(record) if each.run.run_id not in begun]
    return "budget spent" if sum(took) + len(fresh) * sum(took) / len(took) > until["hours"] else ""


def _end(record: Record) -> str:
    until = record.info.get("until")
    if not until or not until["stopped"]:
        return f"Done: {len(record.begun)} runs. See: python -m analysis --sweep {record.sweep_id}"
    if until["stopped"] == ALONE:
        return f"Stopped after {len(record.begun)} runs of tuning: {ALONE}. Launch it with other values of tune."
    left = sum(each["outcome"] == "undecided" for each in until["looks"][-1]["questions"])
    words = {"decided": "all is decided", "budget spent": f"budget spent, {left} undecided"}
    what = words.get(until["stopped"], until["stopped"])
    looks = f"{len(until['looks'])} of {len(until['seeds'])} looks"
    return (
        f"Stopped: {what} after {looks} and {len(record.begun)} runs. See: python -m analysis --sweep {record.sweep_id}"
    )
