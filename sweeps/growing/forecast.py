"""What a growing sweep is likely to come to, for `--dry-run`: from the results that its runs have already."""

from __future__ import annotations

from typing import Any

from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import TUNING, Sweep
from sweeps.growing import results, stopping
from sweeps.growing.record import FINAL, Record
from sweeps.past import mean_hours


def lines(record: Record) -> list[str]:
    """Reads the ledger and writes nothing."""
    hours = mean_hours([candidate.run for candidate in record.candidates], record.ledger)
    told = _tuning(record, hours) if "tune" in record.info else []
    if "until" not in record.info:
        return told
    rule: dict[str, Any] = record.info["until"]
    for look in range(len(rule["looks"])):
        told += stopping.in_words({**rule, "looks": rule["looks"][: look + 1]})
    if rule["stopped"]:
        return [*told, f"Stopped: {rule['stopped']}."]
    found = [] if "tune" in record.info else _questions(record, rule)
    arms = len({candidate.place for candidate in record.candidates})
    spent = sum(candidate.stage == TUNING for candidate in record.candidates)
    return [*told, *stopping.forecast(rule, found, arms, hours, spent=spent)]


def _tuning(record: Record, hours: float | None) -> list[str]:
    rule = record.info["tune"]
    tuning = [candidate for candidate in record.candidates if candidate.stage == TUNING]
    arms = len({candidate.place for candidate in tuning})
    final = len({candidate.seed for candidate in record.candidates if candidate.stage == FINAL}) * arms
    tried = f"{len(rule['values'])} values ({', '.join(rule['values'])}), seeds {', '.join(map(str, rule['seeds']))}"
    text = f"Tuning: {tried}, for each of {arms} arms: {stopping.cost(len(tuning), hours)}"
    then = "" if "until" in record.info else f"; then {stopping.cost(final, hours)} with the best value of each arm"
    return [f"{text}{then}."]


def _questions(record: Record, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """How what is to be decided stands by the runs that have finished; [] where none has."""
    known = record.ledger.states([candidate.run.run_id for candidate in record.candidates])
    finished = {state.run_id for state in known if state.state is State.FINISHED}
    done = [candidate for candidate in record.candidates if candidate.run.run_id in finished]
    if not done:
        return []
    about = {key: value for key, value in record.info.items() if key != "until"}
    lines = tuple(each.run.line(index, each.run.overrides) for index, each in enumerate(done))
    sweep = Sweep(record.sweep_id, about, lines)
    return results.forecast(record.ledger.home, sweep, rule["about"], rule["seeds"], rule["levels"])
