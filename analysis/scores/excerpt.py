"""The samples that a page shows: of a few arms, the problems on which they differ most, with a few responses each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.frames.frames import Frames
from analysis.frames.samples import Response
from analysis.scores.arm import Arm
from analysis.scores.cell import last_points
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.selection import default_reference, ordered

ARMS, PROBLEMS, RESPONSES = 12, 40, 3  # at most: arms of a setting, their problems, responses of an arm to a problem
Problem = tuple[str, str]  # benchmark, id


@dataclass(frozen=True)
class Shown:
    """One run of an arm. right: by problem, the numbers of (correct, judged) samples; responses: a few of them."""

    arm: Arm
    run_id: str
    name: str
    step: int
    right: dict[Problem, tuple[int, int]]
    responses: dict[Problem, list[Response]]


@dataclass(frozen=True)
class Excerpt:
    """The samples of one setting. problems: those on which an arm differs most from the first arm come first."""

    setting: str
    problems: tuple[Problem, ...]
    shown: tuple[Shown, ...]


def excerpts(frames: Frames) -> list[Excerpt]:
    """One excerpt for each setting whose samples are available."""
    of_settings = [_of_setting(frames, setting) for setting in by_setting(frames)]
    return [excerpt for excerpt in of_settings if excerpt is not None]


def _of_setting(frames: Frames, setting: Comparable) -> Excerpt | None:
    counted = {arm.group_id: _counted(frames, arm, setting.sources) for arm in setting.arms}
    rows: list[tuple[Arm, str, int, dict[Problem, tuple[int, int]]]] = []
    references = {arm.group_id for arm in default_reference(setting.arms, frames.baseline).values()}
    for arm in sorted(ordered(setting.arms, frames.swept), key=lambda arm: arm.group_id not in references):
        count = counted[arm.group_id]
        if count is not None and len(rows) < ARMS:
            rows.append((arm, *count))
    problems = flipped([right for _, _, _, right in rows])
    if not problems:
        return None
    shown: list[Shown] = []
    for arm, run_id, step, right in rows:
        responses: dict[Problem, list[Response]] = {}
        for response in frames.responses(run_id, step, problems):
            responses.setdefault((response.source, response.problem_id), []).append(response)
        varied = {problem: _varied(of_problem) for problem, of_problem in responses.items()}
        name = next(run.name for run in arm.runs if run.run_id == run_id)
        shown.append(Shown(arm, run_id, name, step, {p: right[p] for p in problems if p in right}, varied))
    return Excerpt(setting.name, tuple(problems), tuple(shown)) if any(s.responses for s in shown) else None


def _counted(
    frames: Frames, arm: Arm, sources: Sequence[str]
) -> tuple[str, int, dict[Problem, tuple[int, int]]] | None:
    """(run, step, by problem its correct and judged samples) of an arm's first finished run at its last evaluation."""
    for run_id, point in last_points(frames, arm).items():
        right: dict[Problem, tuple[int, int]] = {}
        for source in sources:
            judged = frames.problem_counts(run_id, point.after, source)
            if judged is not None:
                pairs = zip(judged.c.tolist(), judged.n.tolist(), strict=True)
                right |= dict(zip(judged.problems, pairs, strict=True))
        if right:
            return run_id, point.after, right
    return None


def flipped(rights: Sequence[dict[Problem, tuple[int, int]]]) -> list[Problem]:
    """The problems on which an arm differs most from the first one, taken from each arm in turn.

    rights: of each arm, by problem its correct and judged samples.
    """
    if not rights:
        return []
    first, *others = rights
    shares = {p: c / n for p, (c, n) in first.items() if n}
    ranked = [
        sorted(shares, key=lambda p, other=other: (-abs(_share(other, p) - shares[p]), p))
        for other in others or [first]
    ]
    turns = (problem for turn in zip(*ranked, strict=True) for problem in turn)
    return list(dict.fromkeys(turns))[:PROBLEMS]


def _share(right: dict[Problem, tuple[int, int]], problem: Problem) -> float:
    correct, judged = right.get(problem, (0, 0))
    return correct / judged if judged else 0.0


def _varied(responses: Sequence[Response]) -> list[Response]:
    """The first response of each outcome, then the first others."""
    of_outcome = {r.outcome: r for r in reversed(responses)}
    first = [r for r in responses if of_outcome[r.outcome] is r]
    return (first + [r for r in responses if r not in first])[:RESPONSES]
