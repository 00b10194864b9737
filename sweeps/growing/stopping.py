"""`until=decided budget=24`: seeds are added in waves until what was asked is decided, or the budget is spent.

The rule is fixed at launch and stands in sweep.json under `until`: at how many seeds it looks, at which nominal level
(analysis/scores/sequential.py), what it looks at. Each look is recorded before anything follows from it. Arms of what
is decided get no more seeds; the others get the next wave, all the same seeds, so that differences stay paired.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.scores.claim import CLAIMS, Outcome
from sweeps.growing import results
from sweeps.progress import duration

UNIT_HOURS = {"h": 1.0, "hours": 1.0, "min": 1 / 60, "minutes": 1 / 60}


@dataclass(frozen=True)
class Budget:
    """What may be spent on all runs of a sweep, those that were finished before it included: runs, or hours of runs."""

    runs: int | None = None
    hours: float | None = None


def read_budget(text: str | None) -> Budget:
    """`24` or `24runs`, `10h`, `90min`. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*([\d.]+)\s*(\w*)\s*", text or "")
    if match and match[2] in ("", "run", "runs") and match[1].isdigit():
        return Budget(runs=int(match[1]))
    if match and match[2] in UNIT_HOURS and re.fullmatch(r"\d*\.?\d+|\d+\.", match[1]):
        return Budget(hours=float(match[1]) * UNIT_HOURS[match[2]])
    came = f"budget={text} is no budget" if text else "until=decided needs a budget"
    raise ValueError(f"{came}: pass the most runs in all, budget=24, or hours of runs, budget=10h or budget=90min.")


def read_until(text: str, *, has_claims: bool) -> str:
    """What is to be decided: CLAIMS, the name of a metric, or "" for the usual one. Raises ValueError."""
    word, _, metric = text.partition(":")
    if word != "decided":
        raise ValueError(
            f"until={text} is unknown: pass until=decided, or until=decided:METRIC for the differences in one metric, "
            "as in until=decided:pass."
        )
    return metric or (CLAIMS if has_claims else "")


def rule(about: str, arms: int, first: int, runs: int, *, spent: int = 0) -> dict[str, Any]:
    """What is fixed at launch. first: seeds of the first look; runs: the most in all, `spent` of them on tuning.

    ValueError if that is too few for three seeds of each arm.
    """
    last, first = (runs - spent) // arms, results.least_seeds(first)
    if last < first:
        least = first * arms + spent
        tuned = f", and {spent} for tuning" if spent else ""
        raise ValueError(
            f"a budget of {runs} runs is less than the first look takes: {first} seeds of each of "
            f"{arms} arms{tuned}. Pass budget={least} or more."
        )
    parts = 1 if about == CLAIMS else arms - 1  # differences share the 5 % evenly; claims have it each
    return {"about": about, **results.rule(first, last, parts), "runs": runs, "looks": [], "stopped": ""}


def look(rule: Mapping[str, Any], home: Path, sweep_id: str) -> dict[str, Any]:
    """The next look: how each open question stands. A pure function of the runs, but for the time."""
    number = len(rule["looks"])
    before = [each for one in rule["looks"] for each in one["questions"] if each["outcome"] != "undecided"]
    closed = {each["name"] for each in before}
    level = rule["levels"][number]
    found = results.look(home, sweep_id, rule["about"], level, closed)
    return {"seeds": rule["seeds"][number], "level": level, "time": time.time(), "questions": found}


def stopped(rule: Mapping[str, Any]) -> str:
    """Why nothing follows the looks taken; "" if the next wave does."""
    if not rule["looks"]:
        return ""
    if not open_groups(rule):
        untested = [q for each in rule["looks"] for q in each["questions"] if q["outcome"] == Outcome.NOT_TESTED]
        asked = len(rule["looks"][0]["questions"])
        return f"nothing is left to decide ({len(untested)} of {asked} claims not tested)" if untested else "decided"
    return "budget spent" if len(rule["looks"]) == len(rule["seeds"]) else ""


def open_groups(rule: Mapping[str, Any]) -> set[str]:
    """Ids of the arms that the newest look left open."""
    newest = rule["looks"][-1]["questions"]
    return {group for each in newest if each["outcome"] == "undecided" for group in each["groups"]}


def in_words(rule: Mapping[str, Any]) -> list[str]:
    """The newest look, a line for each question."""
    newest, number = rule["looks"][-1], len(rule["looks"])
    head = f"Look {number} of at most {len(rule['seeds'])}, {newest['seeds']} seeds, level {newest['level']:.2g}:"
    return [head, *(f"  {each['outcome']:12} {each['name']}: {each['measured']}" for each in newest["questions"])]


def forecast(
    rule: Mapping[str, Any], found: Sequence[Mapping[str, Any]], arms: int, hours: float | None, *, spent: int = 0
) -> list[str]:
    """What a launch is likely to cost, for `--dry-run`. hours: of a run, None where none like it has finished; spent:
    runs of tuning."""
    seeds, nominal = rule["seeds"], rule["levels"]
    each = ", ".join(f"{s} ({level:.2g})" for s, level in zip(seeds, nominal, strict=True))
    lines = [f"Until decided: looks at {each} seeds of an arm (nominal level of each look)."]
    most = seeds[-1] * arms + spent
    lines.append(f"At most {cost(most, hours)} in all, where nothing is decided before.")
    told: list[list[float]] = [q["chances"] for q in found]
    known = [chances for chances in told if not math.isnan(chances[0])]
    if not known:
        return [*lines, "Two or more finished seeds of each arm would say when it is likely to be decided."]
    lines.append("If the differences are what they look like now, the chance to be decided by each look is:")
    for q, chances in zip(found, told, strict=True):
        shown = ", ".join("?" if math.isnan(c) else f"{c:.0%}" for c in chances)
        lines.append(f"  {shown}   {q['name']} (now {q['measured']})")
    all_of = [min(column) for column in zip(*known, strict=True)]
    likely = next((i for i, chance in enumerate(all_of) if chance >= 0.5), None)
    if likely is None:
        return [*lines, "Likely: not decided within this budget."]
    runs = seeds[likely] * arms + spent
    return [*lines, f"Likely: decided after {likely + 1} of {len(seeds)} waves, {cost(runs, hours)} in all."]


def cost(runs: int, hours: float | None) -> str:
    return f"{runs} runs" + (f", about {duration(3600 * hours * runs)} of runs" if hours is not None else "")
