"""What a sweep wants decided, and whether it is: the claims of its study, or each arm's difference to its reference."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.scores import study
from analysis.scores.arm import Arm
from analysis.scores.cell import cell
from analysis.scores.claim import CLAIMS, Outcome, Verdict
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import Compared, compare
from analysis.scores.crossed import LEAST_SEEDS
from analysis.scores.metric import Kind, Metric, parse, usual
from analysis.scores.selection import default_reference, ordered
from analysis.scores.sequential import chances
from analysis.scores.verdict import name_of, verdicts

NAME_ANOTHER = " Name a metric that they measured: until=decided:METRIC."


@dataclass(frozen=True)
class Question:
    """outcome: `above`, `below`, a claim's outcome, or `undecided`; measured: the difference and interval.

    groups: ids of the arms that more seeds would have to be of. margin: of an equivalence, in the units of `compared`.
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
        """The chance that it is decided by each look, if all is as it looks now; NaN where that cannot be told."""
        each = [
            chances(one.judged.summary, one.difference.sampling, seeds, nominal, self.margin) for one in self.compared
        ]
        return [min(column) for column in zip(*each, strict=True)] if each else [math.nan] * len(seeds)


def questions(frames: Frames, about: str, level: float, closed: Collection[str] = ()) -> list[Question]:
    """How each stands at this level of confidence. about: CLAIMS, a metric's name, or "" for the first of the usual.

    closed: names of those that were decided before; they stay what they were and are left out. LookupError for a metric
    that no run measured, or that no two arms can be compared by.
    """
    found = _of_claims(frames, level) if about == CLAIMS else _of_differences(frames, about, level)
    return [question for question in found if question.name not in closed]


def _of_claims(frames: Frames, level: float) -> list[Question]:
    return [
        Question(
            name_of(verdict),
            _outcome(verdict).value,
            verdict.found or verdict.more,
            verdict.groups,
            verdict.compared,
            verdict.margin,
        )
        for verdict in verdicts(frames, level)
    ]


def _outcome(verdict: Verdict) -> Outcome:
    """A claim that too few seeds have tested is as open as one that they left undecided."""
    waits = verdict.outcome == Outcome.NOT_TESTED and verdict.groups
    return Outcome.UNDECIDED if waits else verdict.outcome


def _of_differences(frames: Frames, about: str, level: float) -> list[Question]:
    """Each at this level by itself: its share of the 5 % is the caller's business."""
    ids = [run.run_id for run in frames.rows]
    measured = parse(about, frames, ids) if about else usual(frames, ids)
    if not measured:
        raise LookupError(f"nothing to decide: no run measured avg or pass.{NAME_ANOTHER}")
    metric = measured[0]
    settings = by_setting(frames, on_problems=metric.per_problem)
    found = [question for setting in settings for question in _of_setting(frames, setting, metric, level)]
    if not found:
        raise LookupError(f"nothing to decide: no setting has two arms that measured {metric}.{NAME_ANOTHER}")
    return found


def _of_setting(frames: Frames, setting: Comparable, metric: Metric, level: float) -> list[Question]:
    here = ordered([arm for arm in setting.arms if not arm.borrowed], study.swept(frames))
    against = default_reference(here, study.baseline(frames))
    arms = [arm for arm in here if arm.group_id in against]
    own = {arm.group_id: cell(frames, arm, metric, setting.sources) for arm in arms}
    theirs = {arm.group_id: cell(frames, against[arm.group_id], metric, setting.sources) for arm in arms}
    counted = metric.kind in (Kind.AVG, Kind.PASS) and not frames.judgements.empty
    compared = compare(own, theirs, frames.judgements.most_samples if counted else 0, level)
    return [_question(arm, against[arm.group_id], compared.get(arm.group_id), metric, setting) for arm in arms]


def _question(arm: Arm, reference: Arm, compared: Compared | None, metric: Metric, setting: Comparable) -> Question:
    name = setting.titled(f"{arm.label} against {reference.label}, {metric}")
    groups = (arm.group_id, reference.group_id)
    if compared is None:
        return Question(name, Outcome.UNDECIDED.value, "no result yet", groups)
    plain = compared.judged.plain
    decided = plain.excludes(0) and len(compared.difference.seeds) >= LEAST_SEEDS
    outcome = ("above" if compared.effect > 0 else "below") if decided else Outcome.UNDECIDED.value
    measured = metric.difference(compared.effect, plain)
    return Question(name, outcome, measured, groups, (compared,))
