"""The questions that a sweep is to decide, and their state: the claims of its study, or each arm's difference to its
reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.frames.frames import Frames
from analysis.scores import study
from analysis.scores.arm import Arm
from analysis.scores.cell import cell
from analysis.scores.claim import CLAIMS, Outcome, Verdict
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import LUCKY, Compared, compare, without_luck
from analysis.scores.crossed import LEAST_SEEDS
from analysis.scores.metric import Kind, Metric, default_metrics, parse
from analysis.scores.selection import default_reference, ordered
from analysis.scores.sequential import chances
from analysis.scores.trajectory import caveat_of_time
from analysis.scores.verdict import name_of, verdicts

NAME_ANOTHER = " Name a metric that they measured: until=decided:METRIC."


@dataclass(frozen=True)
class Question:
    """A question of a sweep.

    outcome: `above`, `below`, a claim's outcome, `undecided`, or `not tested` if the better arm has diverged runs.
    measured: the difference and its interval in words.
    groups: group ids of the arms that need more seeds. margin: of an equivalence, in the units of `compared`.
    """

    name: str
    outcome: str
    measured: str
    groups: tuple[str, ...]
    compared: tuple[Compared, ...] = ()
    margin: float | None = None

    @property
    def open(self) -> bool:
        return self.outcome == Outcome.UNDECIDED

    def chances(self, seeds: Sequence[int], nominal: Sequence[float]) -> list[float]:
        """The chance that the question is decided by each look, if differences are as measured so far; NaN: unknown."""
        by_difference = [
            chances(c.judged.summary, c.difference.sampling, seeds, nominal, self.margin) for c in self.compared
        ]
        if not by_difference:
            return [math.nan] * len(seeds)
        return [min(of_look) for of_look in zip(*by_difference, strict=True)]


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
        Question(
            name_of(verdict),
            _outcome(verdict).value,
            verdict.measured or verdict.note,
            verdict.groups,
            verdict.compared,
            verdict.margin,
        )
        for verdict in verdicts(frames, level)
    ]


def _outcome(verdict: Verdict) -> Outcome:
    """The outcome, with a claim that was not tested for lack of seeds as undecided: more seeds may decide it."""
    needs_seeds = verdict.outcome == Outcome.NOT_TESTED and verdict.groups
    return Outcome.UNDECIDED if needs_seeds else verdict.outcome


def _of_differences(frames: Frames, about: str, level: float) -> list[Question]:
    """Each arm's difference, tested at this level by itself: the caller divides the 5 % among the differences."""
    ids = [run.run_id for run in frames.rows]
    measured = parse(about, frames, ids) if about else default_metrics(frames, ids)
    if not measured:
        raise LookupError(f"nothing to decide: no run measured avg or pass.{NAME_ANOTHER}")
    metric = measured[0]
    settings = by_setting(frames, on_problems=metric.per_problem)
    questions = [question for setting in settings for question in _of_setting(frames, setting, metric, level)]
    if not questions:
        raise LookupError(f"nothing to decide: no setting has two arms that measured {metric}.{NAME_ANOTHER}")
    return questions


def _of_setting(frames: Frames, setting: Comparable, metric: Metric, level: float) -> list[Question]:
    of_study = ordered([arm for arm in setting.arms if not arm.from_other_study], study.swept(frames))
    against = default_reference(of_study, study.baseline(frames))
    arms = [arm for arm in of_study if arm.group_id in against]
    cells = {arm.group_id: cell(frames, arm, metric, setting.sources) for arm in arms}
    references = {arm.group_id: cell(frames, against[arm.group_id], metric, setting.sources) for arm in arms}
    has_samples = metric.kind in (Kind.AVG, Kind.PASS) and not frames.judgements.empty
    samples, unfair = frames.judgements.most_samples if has_samples else 0, caveat_of_time(metric, of_study)
    compared = without_luck(compare(cells, references, samples, level, unfair=unfair), cells, references)
    return [_question(arm, against[arm.group_id], compared.get(arm.group_id), metric, setting) for arm in arms]


def _question(arm: Arm, reference: Arm, compared: Compared | None, metric: Metric, setting: Comparable) -> Question:
    name = setting.titled(f"{arm.label} against {reference.label}, {metric}")
    groups = (arm.group_id, reference.group_id)
    if compared is None:
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
