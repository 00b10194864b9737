"""Decisions about a growing sweep from its own results: the state of its questions, the stopping rule, tuning scores.

Plain data in and out: sweeps/growing asks for them.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.frames.frames import Frames
from analysis.frames.load import catalogue
from analysis.frames.load import frames as frames_of
from analysis.frames.runs import flat_config
from analysis.scores.arm import Arm
from analysis.scores.bases import OverBases
from analysis.scores.cell import Cell, cell
from analysis.scores.claim import CLAIMS, Outcome, Verdict
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import LUCKY, Compared, against_best, compare
from analysis.scores.contrast import detectable, grown
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.metric import TIMES, Metric, check_ahead, parse
from analysis.scores.selection import default_reference, ordered
from analysis.scores.sequential import (
    DROPPED,
    FUTILE,
    calibrated,
    chance_at_last,
    chances,
    dropped,
    levels,
    open_questions,
    schedule,
)
from analysis.scores.trajectory import OWN_GPUS, SHARED_TIME, caveat_of_time
from analysis.scores.tuning import run_scores
from analysis.scores.verdict import name_of, verdicts
from rlvr.ledger.sweeps import Sweep


def rule(first: int, last: int, parts: int, best: float | None = None) -> dict[str, Any]:
    """The stopping rule with looks from `first` to `last` seeds. parts: number of differences that share the 5 %. best:
    where the best arm is sought, the lead of another that does not matter, in a table's units; None: it is not sought.

    That the best arm is dropped is an error to one side alone, and so is that it leads by more than `best` where the
    looks end since none does: in both its difference to some arm was measured too low. So the 5 % are of one side.
    """
    seeds, alpha = schedule(first, last), 1 - LEVEL
    spending = "O'Brien-Fleming type (Lan and DeMets 1983)"
    shared = {"alpha": alpha, "spending": spending, "parts": parts}
    two_sided = alpha if best is None else 2 * alpha
    by_look = levels(seeds, two_sided / parts) if parts > 1 else calibrated(seeds, two_sided)
    sought = {} if best is None else {"best": best}
    return {**shared, **sought, "seeds": seeds, "levels": by_look, "futile": FUTILE}


def check_metric(name: str, evaluations: Sequence[str], samples: int, *, own_gpus: bool, best: bool = False) -> None:
    """Raises LookupError for a metric that runs with these evaluations will not measure, for one of time that no number
    of seeds would decide, and, where the best arm is sought, for one of which no value is better than another. samples:
    per problem. own_gpus: whether SLURM allocates each run GPUs of its own.
    """
    if not check_ahead(name, evaluations, samples) and best:
        raise LookupError(f"--metrics {name or 'METRIC'}: no value of it is better than another. Name avg, pass, ...")
    if name.startswith(TIMES) and not own_gpus:
        raise LookupError(
            f"--metrics {name} would never be decided: {SHARED_TIME}. Name another metric, or set {OWN_GPUS}."
        )


def look(home: Path, sweep_id: str, rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The outcome of each question that the looks of this rule have left open, at the level of its next look. Before
    the last look those that stay open have the `chance` that this decides them."""
    index = len(rule["looks"])
    level, last = rule["levels"][index], (rule["seeds"][-1], rule["levels"][-1])
    has_chances = index + 1 < len(rule["seeds"]) and "futile" in rule
    frames, taken = frames_of(catalogue(home), sweep=sweep_id), list[dict[str, Any]]()
    for q in questions_of(rule, frames, 1 - level):
        chance = q.chance_at_last(*last) if has_chances and q.open else math.nan
        of_chance = {} if math.isnan(chance) else {"chance": chance}
        of_best = {"arms": list(q.arms), "close": q.close} if "best" in rule else {}
        about = {"name": q.name, "outcome": q.outcome, "measured": q.measured, "groups": list(q.groups)}
        taken.append({**about, **of_chance, **of_best})
    return taken


def forecast(home: Path, sweep: Sweep, rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each question of a sweep, which need not be in the ledger yet: what its runs have measured, and the chance
    (NaN: not known) that the question is decided by each look."""
    listing = catalogue(home)
    others = [other for other in listing.sweeps if other.sweep_id != sweep.sweep_id]
    with_sweep = frames_of(replace(listing, sweeps=[*others, sweep]), sweep=sweep.sweep_id)
    return [
        {"name": q.name, "measured": q.measured, "chances": q.chances(rule["seeds"], rule["levels"])}
        for q in questions_of({**rule, "looks": []}, with_sweep, LEVEL)
    ]


ALIKE = ("task.", "model.", "evaluation.problems", "evaluation.samples")  # keys of configs by which spreads are alike


def foreseen(home: Path, config: Mapping[str, Any], about: str, rule: Mapping[str, Any]) -> str:
    """A line on the differences that a sweep without results would decide at its looks, by the spread of the newest
    sweep with three seeds of the same policy on the same problems (of its differences the one in the middle); "" if
    there is none, or claims are to be decided. config: of a planned run."""

    def place(of_run: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in of_run.items() if key.startswith(ALIKE)}

    listing, here = catalogue(home), place(flat_config(dict(config)))
    for sweep in reversed(listing.sweeps if about != CLAIMS else []):
        if not any(i in listing.records and place(listing.records[i].config) == here for i in sweep.run_ids):
            continue
        with contextlib.suppress(LookupError):  # it measured something else
            earlier = questions(frames_of(listing, sweep=sweep.sweep_id), about, LEVEL)
            known = [c for q in earlier for c in q.compared if len(c.difference.seeds) >= LEAST_SEEDS]
            if known := sorted((c for c in known if c.detectable > 0), key=lambda c: c.detectable):
                name, middle = sweep.name or sweep.study or sweep.sweep_id, known[len(known) // 2]
                of_looks = (_visible(middle, *look) for look in zip(rule["seeds"], rule["levels"], strict=True))
                sizes = ", ".join(filter(None, of_looks)) or "no size that is possible"
                return f"By the spread in {name} differences are decided with 80 % chance from {sizes}."
    return ""


def _visible(compared: Compared, seeds: int, level: float) -> str:
    summary = compared.judged.summary
    then = grown(summary, compared.difference.sampling, seeds=seeds / summary.num_seeds)
    size = detectable(then, alpha=level)
    shown = f"{100 * size:.2g} points" if math.isfinite(compared.most) else f"{size:.2g}"
    return f"{shown} at {seeds} seeds" if size <= compared.most else ""


def tuning_scores(home: Path, sweep_id: str) -> Mapping[str, float]:
    """By id of a tuning run, its score on the validation split; NaN for a run without one."""
    of_sweep = frames_of(catalogue(home), sweep=sweep_id, mixed_code=True)  # the scores are of single runs
    return run_scores(of_sweep.tuned or of_sweep)


# --- questions: the claims of a study, or each arm's difference to its reference


NAME_ANOTHER = " Name a metric that they measured: --metrics METRIC."


@dataclass(frozen=True)
class Question:
    """A question of a sweep.

    outcome: `above`, `below`, a claim's outcome, `undecided`, or `not tested` if the better arm has diverged runs.
    measured: the difference and its interval in words.
    groups: group ids of the arms that need more seeds. margin: of an equivalence, in the units of `compared`.

    Of an arm against the best one: arms, the labels of both; better: as of a metric; lead: of the arm, does not matter.
    """

    name: str
    outcome: str
    measured: str
    groups: tuple[str, ...]
    compared: tuple[Compared, ...] = ()
    margin: float | None = None
    arms: tuple[str, ...] = ()
    better: int = 1
    lead: float = 0.0

    @property
    def close(self) -> bool:
        """Whether the arm is surely not better by more than its lead may be."""
        known = [c for c in self.compared if len(c.difference.seeds) >= LEAST_SEEDS]
        plain = [c.judged.plain for c in known]
        return any((i.high if self.better > 0 else -i.low) <= self.lead for i in plain)

    @property
    def open(self) -> bool:
        return self.outcome == Outcome.UNDECIDED

    def chance_at_last(self, seeds: int, level: float) -> float:
        """The chance that the last look decides the question, by that of its differences that has the best; NaN:
        unknown."""
        summaries = [replace(c.judged.summary, mean=self.better * c.judged.summary.mean) for c in self.compared]
        known = [
            chance_at_last(summary, c.difference.sampling, seeds, level, self.margin, lead=self.lead)
            for summary, c in zip(summaries, self.compared, strict=True)
        ]
        return max(known) if known and not any(map(math.isnan, known)) else math.nan

    def chances(self, seeds: Sequence[int], nominal: Sequence[float]) -> list[float]:
        """The chance that the question is decided by each look, if differences are as measured so far; NaN: unknown."""
        by_difference = [
            chances(c.judged.summary, c.difference.sampling, seeds, nominal, self.margin) for c in self.compared
        ]
        if not by_difference:
            return [math.nan] * len(seeds)
        return [min(of_look) for of_look in zip(*by_difference, strict=True)]


def questions_of(rule: Mapping[str, Any], frames: Frames, level: float) -> list[Question]:
    """The questions that the looks of a stopping rule have left open."""
    if "best" in rule:
        return _of_best(frames, rule, level)
    closed = [q for taken in rule["looks"] for q in taken["questions"] if q not in open_questions(rule, taken)]
    return questions(frames, rule["about"], level, closed)


def questions(frames: Frames, about: str, level: float, closed: Sequence[Mapping[str, Any]] = ()) -> list[Question]:
    """The questions of a sweep at this level of confidence. about: CLAIMS, a metric's name, or "" for the first default
    column of tables.

    closed: questions decided before (`name`, `groups`), which keep their outcome and are left out. Raises LookupError
    for a metric that no run measured, or that cannot compare any two arms.
    """
    of_sweep = _of_claims(frames, level) if about == CLAIMS else _of_differences(frames, about, level)

    def identity(name: str, groups: Sequence[str]) -> object:
        # The arms of a difference: labels name what the arms in the study do not share, and change when some join it.
        return name if about == CLAIMS else tuple(groups)

    decided = {identity(question["name"], question["groups"]) for question in closed}
    return [question for question in of_sweep if identity(question.name, question.groups) not in decided]


def _of_claims(frames: Frames, level: float) -> list[Question]:
    return [
        Question(name_of(v), _outcome(v).value, v.measured or v.note, v.groups, _along_seeds(v), v.margin)
        for v in verdicts(frames, level)
    ]


def _along_seeds(verdict: Verdict) -> tuple[Compared, ...]:
    """The differences of a verdict, by what more seeds take from their error; () where that is not known."""
    along: list[Compared] = []
    for compared in verdict.compared:
        summary = compared.judged.summary
        if isinstance(compared.difference, OverBases):
            if (by_seeds := compared.difference.by_seeds) is None:
                return ()
            summary = by_seeds
        along.append(replace(compared, judged=replace(compared.judged, summary=summary)))
    return tuple(along)


def _outcome(verdict: Verdict) -> Outcome:
    """The outcome, with a claim that was not tested for lack of seeds as undecided: more seeds may decide it."""
    needs_seeds = verdict.outcome == Outcome.NOT_TESTED and verdict.groups
    return Outcome.UNDECIDED if needs_seeds else verdict.outcome


def _of_differences(frames: Frames, about: str, level: float) -> list[Question]:
    """Each arm's difference, tested at this level by itself: the caller divides the 5 % among the differences."""
    metric = _metric(frames, about)
    settings = by_setting(frames, on_problems=metric.per_problem)
    questions = [question for setting in settings for question in _of_setting(frames, setting, metric, level)]
    if not questions:
        raise LookupError(f"nothing to decide: no setting has two arms that measured {metric}.{NAME_ANOTHER}")
    return questions


def _metric(frames: Frames, about: str) -> Metric:
    measured = parse(about, frames, [run.run_id for run in frames.rows])
    if not measured:
        raise LookupError(f"nothing to decide: no run measured avg or pass.{NAME_ANOTHER}")
    return measured[0]


def _of_best(frames: Frames, rule: Mapping[str, Any], level: float) -> list[Question]:
    """The difference of each arm that is left from the best of them, in each setting, tested as in `_of_differences`.

    Of any two arms, the test that errs is that of the truly best one: K − 1 tests share the 5 %, whichever arm leads.
    Arms that were dropped still help to show the spread between seeds. An arm of which every run diverged is dropped.
    """
    metric, out = _metric(frames, rule["about"]), dropped(rule["looks"])
    open_or_settled: list[Question] = []
    for setting in by_setting(frames, on_problems=metric.per_problem):
        arms = {arm.group_id: arm for arm in setting.arms if not arm.from_other_study}
        cells = {key: cell(frames, arm, metric, setting.sources) for key, arm in arms.items()}
        left = [key for key in arms if key not in out]
        if not left:
            continue
        best, compared = against_best(cells, left, metric.better, level, caveat_of_time(metric, [*arms.values()]))
        for key in (key for key in left if key != best):
            of = compared.get(key)
            question = _question(arms[key], arms[best], of, metric, setting, (cells[key], cells[best]))
            if of is not None and question.outcome in DROPPED and metric.better * of.effect > 0:
                question = replace(question, outcome=Outcome.UNDECIDED.value)  # each leads where it was scored
            if question.outcome == Outcome.NOT_TESTED and cells[key].empty and not cells[best].empty:
                question = replace(question, outcome=Outcome.BELOW.value)
            labels = tuple(setting.titled(arms[k].label) for k in (key, best))
            lead = rule["best"] / metric.scale
            open_or_settled.append(replace(question, arms=labels, better=metric.better, lead=lead))
    if not rule["looks"] and not open_or_settled:
        raise LookupError(f"nothing to decide: no two arms answered the same problems and measured {metric}.")
    return open_or_settled


def _of_setting(frames: Frames, setting: Comparable, metric: Metric, level: float) -> list[Question]:
    of_study = ordered([arm for arm in setting.arms if not arm.from_other_study], frames.swept)
    against = default_reference(of_study, frames.baseline)
    arms = [arm for arm in of_study if arm.group_id in against]
    cells = {arm.group_id: cell(frames, arm, metric, setting.sources) for arm in arms}
    references = {arm.group_id: cell(frames, against[arm.group_id], metric, setting.sources) for arm in arms}
    compared = compare(cells, references, level, unfair=caveat_of_time(metric, of_study))
    return [
        _question(arm, against[i := arm.group_id], compared.get(i), metric, setting, (cells[i], references[i]))
        for arm in arms
    ]


def _question(
    arm: Arm, reference: Arm, compared: Compared | None, metric: Metric, setting: Comparable, of_both: tuple[Cell, Cell]
) -> Question:
    name = setting.titled(f"{arm.label} against {reference.label}, {metric}")
    groups = (arm.group_id, reference.group_id)
    if compared is None:
        for of, whose in zip(of_both, (arm, reference), strict=True):
            if of.empty and of.diverged >= LEAST_SEEDS:
                lost = f"all {of.diverged} runs of {whose.label} diverged"
                return Question(name, Outcome.NOT_TESTED.value, lost, groups)
        return Question(name, Outcome.UNDECIDED.value, "no result yet", groups)
    plain = compared.judged.plain
    measured = metric.difference(compared.effect, plain)
    outcome = Outcome.UNDECIDED.value
    if plain.excludes(0) and len(compared.difference.seeds) >= LEAST_SEEDS:
        if compared.unfair == LUCKY:  # more seeds cannot change it: as of a claim
            outcome, measured = Outcome.NOT_TESTED.value, f"{measured}; {LUCKY}"
        elif not compared.unfair:
            outcome = "above" if compared.effect > 0 else "below"
    return Question(name, outcome, measured, groups, (compared,))
