"""The likely cost of a growing sweep, for `--dry-run`: from the results that its runs have already."""

from __future__ import annotations

from typing import Any

from analysis import decide
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import TUNING, Sweep
from sweeps.growing import stopping
from sweeps.growing.record import FINAL, GrowingRecord
from sweeps.past import mean_hours


def lines(record: GrowingRecord) -> list[str]:
    """The forecast, line by line. Reads the ledger and writes nothing."""
    hours = mean_hours([candidate.run for candidate in record.candidates], record.ledger)
    text = _tuning_lines(record, hours) if "tune" in record.info else []
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
    return [*text, *stopping.forecast(rule, questions, num_arms, hours, spent=spent)]


def _tuning_lines(record: GrowingRecord, hours: float | None) -> list[str]:
    rule = record.info["tune"]
    tuning = [candidate for candidate in record.candidates if candidate.stage == TUNING]
    num_arms = len({candidate.place for candidate in tuning})
    num_final = len({candidate.seed for candidate in record.candidates if candidate.stage == FINAL}) * num_arms
    tried = f"{len(rule['values'])} values ({', '.join(rule['values'])}), seeds {', '.join(map(str, rule['seeds']))}"
    text = f"Tuning: {tried}, for each of {num_arms} arms: {stopping.cost(len(tuning), hours)}"
    then = "" if "until" in record.info else f"; then {stopping.cost(num_final, hours)} with the best value of each arm"
    return [f"{text}{then}."]


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
        return decide.forecast(record.ledger.home, sweep, rule["about"], rule["seeds"], rule["levels"])
    except LookupError:  # nothing is measured yet
        return []
