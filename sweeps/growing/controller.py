"""From one wave to the next: take the decisions that the finished runs allow, record them, and begin the next wave.

`advance` is an idempotent pass over the ledger. On this machine the launcher calls it between waves; on SLURM the last
job of a wave calls it (sweeps/slurm/job_of_report.py) and submits the next wave. A repeated command calls it too.
"""

import contextlib
import itertools
import signal
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import decide
from rlvr.ledger.cause import State
from rlvr.ledger.lock import erase_holder, write_holder
from rlvr.ledger.sweeps import TUNING, Ledger
from sweeps.growing import stopping, tuning
from sweeps.growing.record import GrowingRecord, deciding_lock_held
from sweeps.verdict import LaunchOutcome

ENDED = (State.FINISHED, State.DIVERGED)  # runs in any other state have no result, and are started again first
ALONE = "fewer than two arms have a result at any value, and nothing can be compared"


def has_results(home: Path, sweep_id: str) -> bool:
    """Whether every run begun has a result. Failed runs are started again by the user alone, so that this ends."""
    ledger = Ledger(home)
    open_runs = [state for state in ledger.states(ledger.sweep(sweep_id).run_ids) if state.state not in ENDED]
    for state in open_runs:
        print(f"{state.name}: {state.state}: the sweep waits for it; the same command continues it.", flush=True)
    return not open_runs


@contextlib.contextmanager
def _stoppable(held: int) -> Generator[None, None, None]:
    """A context in which `python -m sweeps cancel` finds this process, also between two waves, when no launch lock is
    held: SIGTERM acts as Ctrl-C does. held: the deciding lock.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    write_holder(held)
    try:
        yield
    finally:
        erase_holder(held)
        signal.signal(signal.SIGTERM, before)


def grow(
    ledger: Ledger, sweep_id: str, start: Callable[[], LaunchOutcome], say: Callable[[str], None] = print
) -> LaunchOutcome:
    """Run all waves on this machine, one after the other. start: runs the unfinished runs of the sweep until they end.

    Returns the outcome of all these waves together. A wave that was interrupted, or has runs without a result, is not
    decided: the same command continues it.
    """
    with deciding_lock_held(ledger, sweep_id) as held, _stoppable(held):
        outcome = LaunchOutcome()
        while wanted := advance(ledger, sweep_id, say):
            outcome = _with_earlier(outcome, start())
            open_runs = [state for state in ledger.states(wanted) if state.state not in ENDED]
            if open_runs:
                say(f"{len(open_runs)} runs of this wave have no result yet: the same command continues them.")
                return outcome
            if outcome.interrupted or outcome.signalled:
                outcome.interrupted = True  # the sweep, although this wave has ended
                say("Interrupted: the same command continues the sweep.")
                return outcome
        if not outcome.finished and not outcome.skipped:
            outcome.skipped = [line["run_id"] for line in ledger.sweep(sweep_id).runs]
        return outcome


def _with_earlier(earlier: LaunchOutcome, newest: LaunchOutcome) -> LaunchOutcome:
    """The outcome of a wave together with the earlier ones of this launch, whose runs have all ended."""
    return replace(
        newest,
        finished=[*earlier.finished, *newest.finished],
        failed=[*earlier.failed, *newest.failed],
        skipped=[run_id for run_id in newest.skipped if run_id not in earlier.finished],
        seconds=earlier.seconds + newest.seconds,
        busy_s=[sum(of_worker) for of_worker in itertools.zip_longest(earlier.busy_s, newest.busy_s, fillvalue=0.0)],
        states=earlier.states | newest.states,
        messages=earlier.messages | newest.messages,
    )


def advance(ledger: Ledger, sweep_id: str, say: Callable[[str], None] = print) -> list[str]:
    """Take all decisions that can be taken, and begin the runs that follow. Returns all runs begun; [] at the end.

    Call it inside `deciding_lock_held`. A decision is on the ledger before a run that follows from it.
    """
    record = GrowingRecord.read(ledger, sweep_id)
    while True:
        wave = stopping.next_wave(record)
        if not wave:
            say(_last_line(record))
            return []
        record.begin(wave)
        run_ids = [candidate.run.run_id for candidate in record.begun]
        if any(state.state not in ENDED for state in ledger.states(run_ids)):
            return run_ids
        if not _decide(record, say):
            say(_last_line(record))
            return []


def _decide(record: GrowingRecord, say: Callable[[str], None]) -> bool:
    """Take the next decision; all runs begun have ended. False if none is left."""
    tune, until = record.info.get("tune"), record.info.get("until")
    if tune and not tune["picks"]:
        runs = [candidate for candidate in record.candidates if candidate.stage == TUNING]
        scores = decide.tuning_scores(record.ledger.home, record.sweep_id)
        tune["picks"] = tuning.pick(tune, scores, {c.run.run_id: (c.place, c.value) for c in runs})
        record.save()
        for place, pick in tune["picks"].items():
            arm = next(candidate.run.arm for candidate in runs if candidate.place == int(place))
            shown = ", ".join(f"{value} {_percent(score)}" for value, score in pick["tried"].items())
            tried = f"{shown} ({arm})"
            if pick["value"] is None:
                say(f"Left out: an arm without a result at any value: {tried}. Launch it with other values of tune.")
            else:
                best = [value for value, score in pick["tried"].items() if score == pick["tried"][pick["value"]]]
                equal = f". {', '.join(best)} are equal: the first is taken" if len(best) > 1 else ""
                say(f"Tuned: {pick['value']} of {tried}{equal}")
        if until is not None and sum(pick["value"] is not None for pick in tune["picks"].values()) < 2:
            until["stopped"] = ALONE
            record.save()
        return True
    if until is None:
        return False
    until["looks"].append(stopping.look(until, record.ledger.home, record.sweep_id))
    until["stopped"] = stopping.stopped(until) or _over_hours(record, until)
    record.save()
    for line in stopping.lines_of_newest_look(until):
        say(line)
    return True


def _percent(score: float | None) -> str:
    return "no result" if score is None else f"{100 * score:.1f} %"


def _over_hours(record: GrowingRecord, until: Mapping[str, Any]) -> str:
    """ "budget spent" if another wave, at the mean hours of the runs so far, exceeds the budget in hours; else ""."""
    if until["hours"] is None:
        return ""
    begun = [candidate.run.run_id for candidate in record.begun]
    hours = [state.seconds / 3600 for state in record.ledger.states(begun)]
    num_new = sum(candidate.run.run_id not in begun for candidate in stopping.next_wave(record))
    return "budget spent" if sum(hours) + num_new * sum(hours) / len(hours) > until["hours"] else ""


def _last_line(record: GrowingRecord) -> str:
    """Why the sweep has ended, and the command that shows its results."""
    until, num_runs = record.info.get("until"), len(record.begun)
    see = f"See: python -m analysis --sweep {record.sweep_id}"
    if not until or not until["stopped"]:
        return f"Done: {num_runs} runs. {see}"
    why = until["stopped"]
    if why == ALONE:
        return f"Stopped after {num_runs} runs of tuning: {ALONE}. Launch it with other values of tune."
    looks = f"{len(until['looks'])} of {len(until['seeds'])} looks"
    if "best" in until:
        left = stopping.arms_left(until)
        return f"Stopped: {why} after {looks} and {num_runs} of at most {until['runs']} runs; {left}. {see}"
    num_open = sum(question["outcome"] == "undecided" for question in until["looks"][-1]["questions"])
    reasons = {"decided": "all is decided", "budget spent": f"budget spent, {num_open} undecided"}
    return f"Stopped: {reasons.get(why, why)} after {looks} and {num_runs} runs. {see}"
