"""`until=decided budget=24`: seeds are added in waves until all questions are decided, or the budget is spent;
`until=best`: until one arm is left that may be the best, or none of those left is better by more than `within` says.

The rule is fixed at launch and kept in sweep.json under `until`: the numbers of seeds at which the results are tested
(a look), the nominal level of each look (analysis/scores/sequential.py), and the questions. Each look is recorded
before the runs that follow from it. Arms whose questions are all decided get no more seeds; the others get the next
wave, all with the same seeds, so that differences stay paired. A question that all of the budget would hardly decide is
given up, which can only make wrong decisions rarer. Arms that are decidedly not the best get no more seeds, either.
"""

import contextlib
import math
import re
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import decide
from analysis.scores.claim import CLAIMS, Outcome
from analysis.scores.sequential import DROPPED, dropped, given_up, open_questions
from rlvr.ledger.sweeps import TUNING
from sweeps.growing.record import FINAL, Candidate, GrowingRecord
from sweeps.progress import duration

MOST_RUNS = 5000  # of a budget: all that may be needed are composed and checked before the first, 100 in a second
UNIT_HOURS = {"h": 1.0, "hours": 1.0, "min": 1 / 60, "minutes": 1 / 60}


@dataclass(frozen=True)
class Budget:
    """The most that all runs of a sweep may take, in runs or in hours of runs. Runs that had finished earlier count."""

    runs: int | None = None
    hours: float | None = None


def read_budget(text: str | None) -> Budget:
    """`24` or `24runs`, `10h`, `90min`. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*([\d.]+)\s*(\w*)\s*", text or "")
    if match and match[2] in ("", "run", "runs") and match[1].isdigit():
        return Budget(runs=int(match[1]))
    if match and match[2] in UNIT_HOURS and re.fullmatch(r"\d*\.?\d+|\d+\.", match[1]):
        return Budget(hours=float(match[1]) * UNIT_HOURS[match[2]])
    problem = f"budget={text} is no budget" if text else "until= needs a budget"
    raise ValueError(f"{problem}: pass the most runs in all, budget=24, or hours of runs, budget=10h or budget=90min.")


def read_until(text: str, *, has_claims: bool) -> tuple[str, float | None]:
    """What to decide: CLAIMS, or the name of the metric to compare, "" for the usual one; and, of the best arm, by how
    much another may be better (None: all differences are to be decided). Raises ValueError."""
    match = re.fullmatch(r"(decided|best)(?::(\S+))?(?: +within +(\d+\.?\d*|\.\d+))?", text.strip())
    if not match or (match[1] == "decided" and match[3]):
        raise ValueError(
            f"until={text} is unknown: pass until=decided, or until=decided:METRIC for the differences in one metric, "
            "as in until=decided:pass; or until=best, until=best:METRIC, until='best:METRIC within 1' for the best arm."
        )
    if match[1] == "best":
        return match[2] or "", float(match[3] or 0)
    return match[2] or (CLAIMS if has_claims else ""), None


def rule(about: str, arms: int, first: int, runs: int, *, spent: int = 0, best: float | None = None) -> dict[str, Any]:
    """The rule as it is fixed at launch. first: seeds of the first look; runs: the most in all, `spent` of them on
    tuning; best: as in `decide.rule`. ValueError if these are too few for the first look.
    """
    if runs > MOST_RUNS:
        raise ValueError(
            f"a budget of {runs:,} runs is more than the {MOST_RUNS:,} that are planned ahead. Pass budget={MOST_RUNS} "
            "or less, or fewer hours."
        )
    last, first = (runs - spent) // arms, max(first, decide.LEAST_SEEDS)
    if last < first:
        least = first * arms + spent
        tuned = f", and {spent} for tuning" if spent else ""
        raise ValueError(
            f"a budget of {runs} runs is less than the first look needs: {first} seeds of each of "
            f"{arms} arms{tuned}. Pass budget={least} or more."
        )
    parts = 1 if about == CLAIMS else arms - 1  # differences share the level of 5 % evenly; each claim has all of it
    return {"about": about, **decide.rule(first, last, parts, best), "runs": runs, "looks": [], "stopped": ""}


@contextlib.contextmanager
def naming_until(best: float | None) -> Generator[None, None, None]:
    """An error about `--metrics`, the option of the analysis, becomes a ValueError about `until=`, the key here."""
    try:
        yield
    except LookupError as error:
        typed = "until=decided:" if best is None else "until=best:"
        raise ValueError(str(error.args[0]).replace("--metrics ", typed)) from error


def look(rule: Mapping[str, Any], home: Path, sweep_id: str) -> dict[str, Any]:
    """The next look: the outcome of each open question. A pure function of the runs, but for the time."""
    index = len(rule["looks"])
    with naming_until(rule.get("best")):
        questions = decide.look(home, sweep_id, rule)
    return {"seeds": rule["seeds"][index], "level": rule["levels"][index], "time": time.time(), "questions": questions}


def stopped(rule: Mapping[str, Any]) -> str:
    """Why no wave follows the looks so far; "" if one follows."""
    if not rule["looks"]:
        return ""
    if not open_groups(rule):
        if "best" in rule:
            return _best(rule)
        questions = [question for taken in rule["looks"] for question in taken["questions"]]
        untested = sum(question["outcome"] == Outcome.NOT_TESTED for question in questions)
        hopeless = sum(bool(given_up(rule, question)) for question in questions)
        of_all = f"of {len(rule['looks'][0]['questions'])} questions"
        counts = ((untested, "not tested"), (hopeless, "given up"))
        left_open = ", ".join(f"{count} {of_all} {what}" for count, what in counts if count)
        return f"nothing is left to decide ({left_open})" if left_open else "decided"
    return "budget spent" if len(rule["looks"]) == len(rule["seeds"]) else ""


def _best(rule: Mapping[str, Any]) -> str:
    """Why nothing is left to do where the best arm is sought, in each setting if the reasons differ."""
    reasons: dict[str, str] = {}  # by the arm that leads
    for leader in sorted(_leaders(rule)):
        of_looks = ([q for q in taken["questions"] if q["groups"][1] == leader] for taken in reversed(rule["looks"]))
        newest = next(filter(None, of_looks))
        reasons[newest[0]["arms"][1]] = _why_best(rule, newest)
    if len({*reasons.values()}) > 1:
        return "; ".join(f"{reason} ({label} leads)" for label, reason in reasons.items())
    (reason,) = {*reasons.values()}
    return f"in each setting {reason}" if len(reasons) > 1 else reason


def _why_best(rule: Mapping[str, Any], questions: Sequence[Mapping[str, Any]]) -> str:
    """The best arm of a setting is known, or another is near enough, or it cannot be known."""
    left = [q for q in questions if q["outcome"] not in DROPPED]
    if not left:
        return "the best arm is known"
    if any(q["outcome"] == Outcome.NOT_TESTED for q in left):
        return "an arm that may be the best has diverged runs, and more seeds cannot decide it"
    if all(q["close"] for q in left):
        return f"no arm that is left is better than the best by more than {rule['best']:g}"
    return "all of the budget would hardly say more"


def arms_left(rule: Mapping[str, Any]) -> str:
    """Where the best arm is sought: the arms that may be it, those that lead first, and the others by look."""
    out, labels = dropped(rule["looks"]), dict[str, str]()
    for question in (q for taken in rule["looks"] for q in taken["questions"]):
        labels |= dict(zip(reversed(question["groups"]), reversed(question["arms"]), strict=True))
    leaders = _leaders(rule)
    left = sorted((group for group in labels if group not in out), key=lambda group: group not in leaders)
    lead = len(leaders) if len(left) > len(leaders) else 0
    parts = [f"left: {', '.join(labels[group] + ' (leads)' * (i < lead) for i, group in enumerate(left))}"]
    for number in sorted({*out.values()}):
        parts.append(f"dropped at look {number}: {', '.join(labels[group] for group in out if out[group] == number)}")
    return "; ".join(parts)


def _leaders(rule: Mapping[str, Any]) -> set[str]:
    """Where the best arm is sought, the arm that leads in each setting, by the newest look that asked about it."""
    out, newest = dropped(rule["looks"]), dict[str, str]()
    for question in (q for taken in rule["looks"] for q in taken["questions"]):
        newest |= dict.fromkeys(question["groups"], question["groups"][1])
    return {leader for leader in newest.values() if leader not in out}


def open_groups(rule: Mapping[str, Any]) -> set[str]:
    """Group ids of the arms with a question that the newest look left open."""
    return {group for question in open_questions(rule, rule["looks"][-1]) for group in question["groups"]}


def next_wave(record: GrowingRecord) -> list[Candidate]:
    """The runs that follow from the decisions so far; [] if the sweep has ended."""
    tune, until = record.info.get("tune"), record.info.get("until")
    if tune and not tune["picks"]:
        return [candidate for candidate in record.candidates if candidate.stage == TUNING]
    final = [candidate for candidate in record.candidates if candidate.stage == FINAL]
    seeds = sorted({candidate.seed for candidate in final})  # in the order in which they are used
    if tune:  # an arm without a pick is left out
        final = [run for run in final if run.value == tune["picks"][str(run.place)]["value"]]
    if until is None:
        return final
    if until["stopped"]:
        return []
    num_looks = len(until["looks"])
    wave = [candidate for candidate in final if candidate.seed in seeds[: until["seeds"][num_looks]]]
    if num_looks == 0:
        return wave
    groups = open_groups(until)
    return [candidate for candidate in wave if candidate.run.group_id in groups]


def lines_of_newest_look(rule: Mapping[str, Any]) -> list[str]:
    """A headline, and a line for each question of the newest look."""
    newest, number = rule["looks"][-1], len(rule["looks"])
    head = f"Look {number} of at most {len(rule['seeds'])}, {newest['seeds']} seeds, level {newest['level']:.2g}:"
    is_open = open_questions(rule, newest)
    lines = [
        (f"{q['outcome']:12} {q['name']}: {q['measured']}", "" if q in is_open else given_up(rule, q))
        for q in newest["questions"]
    ]
    return [head, *(f"  {'; '.join(filter(None, parts))}" for parts in lines)]


def forecast(
    rule: Mapping[str, Any], questions: Sequence[Mapping[str, Any]], arms: int, hours: float | None, *, spent: int = 0
) -> list[str]:
    """Lines for `--dry-run`: the likely cost of a launch.

    questions: `decide.forecast`; hours: of a run, None if no run like these has finished; spent: runs of tuning.
    """
    seeds, levels = rule["seeds"], rule["levels"]
    looks = ", ".join(f"{s} ({level:.2g})" for s, level in zip(seeds, levels, strict=True))
    until = "decided" if "best" not in rule else "the best arm is known"
    lines = [f"Until {until}: looks at {looks} seeds of an arm (nominal level of each look)."]
    most = seeds[-1] * arms + spent
    lines.append(f"At most {cost(most, hours)} in all, where nothing is decided before.")
    chances: list[list[float]] = [question["chances"] for question in questions]  # of each question, by each look
    known = [row for row in chances if not math.isnan(row[0])]
    if not known:
        return [*lines, "Once two or more seeds of each arm have finished, the likely number of waves is shown here."]
    lines.append("If the true differences are those measured so far, the chance to be decided by each look is:")
    for question, row in zip(questions, chances, strict=True):
        shown = ", ".join("?" if math.isnan(chance) else f"{chance:.0%}" for chance in row)
        lines.append(f"  {shown}   {question['name']} (now {question['measured']})")
    least_chances = [min(column) for column in zip(*known, strict=True)]
    likely = next((i for i, chance in enumerate(least_chances) if chance >= 0.5), None)
    if likely is None:
        return [*lines, "Likely: not decided within this budget."]
    runs = seeds[likely] * arms + spent
    return [*lines, f"Likely: decided after {likely + 1} of {len(seeds)} waves, {cost(runs, hours)} in all."]


def cost(runs: int, hours: float | None) -> str:
    return f"{runs} runs" + (f", about {duration(3600 * hours * runs)} of runs" if hours is not None else "")
