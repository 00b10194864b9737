"""The samples that a page shows: of a few arms, the problems on which they differ most, along training."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.frames.frames import Frames, grouped, remembered
from analysis.frames.samples import Response
from analysis.scores.arm import Arm
from analysis.scores.cell import last_points
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.selection import default_reference, ordered

ARMS, PROBLEMS = 12, 40  # at most: arms of a setting, their problems
RESPONSES = 3  # of an arm to a problem, where all together are too long
CHARACTERS = 2_000_000  # of the responses of a setting: as many evaluations are shown as have no more
OVERHEAD = 30  # characters of the page per response, beside its text
Problem = tuple[str, str]  # benchmark, id
Right = dict[Problem, tuple[int, int]]


@dataclass(frozen=True)
class JudgedStep:
    """right: by problem, the numbers of (correct, judged) samples; responses: all of them, or RESPONSES."""

    step: int
    right: Right
    responses: dict[Problem, list[Response]]


@dataclass(frozen=True)
class ArmExcerpt:
    """One run of an arm, with its evaluations; the last one is always among them."""

    arm: Arm
    run_id: str
    name: str
    evaluations: tuple[JudgedStep, ...]

    @property
    def last(self) -> JudgedStep:
        return self.evaluations[-1]


@dataclass(frozen=True)
class Excerpt:
    """The samples of one setting. problems: those on which an arm differs most from the first arm come first."""

    setting: str
    problems: tuple[Problem, ...]
    shown: tuple[ArmExcerpt, ...]


@remembered
def excerpts(frames: Frames) -> list[Excerpt]:
    """One excerpt for each setting whose samples are available."""
    of_settings = [_of_setting(frames, setting) for setting in by_setting(frames)]
    return [excerpt for excerpt in of_settings if excerpt is not None]


def _of_setting(frames: Frames, setting: Comparable) -> Excerpt | None:
    references = {arm.group_id for arm in default_reference(setting.arms, frames.baseline).values()}
    rows: list[tuple[Arm, str, int, Right]] = []
    for arm in sorted(ordered(setting.arms, frames.swept), key=lambda arm: arm.group_id not in references):
        counted = _counted(frames, arm, setting.sources) if len(rows) < ARMS else None
        rows += [] if counted is None else [(arm, *counted)]
    problems = flipped([right for *_, right in rows])
    last = {run_id: _responses(frames, run_id, step, problems) for _, run_id, step, _ in rows}
    if not any(last.values()):
        return None
    of_all = [r for by_problem in last.values() for responses in by_problem.values() for r in responses]
    num_evaluations = CHARACTERS // sum(len(r.response) + OVERHEAD for r in of_all)
    shown: list[ArmExcerpt] = []
    for arm, run_id, step, right in rows:
        name = next(run.name for run in arm.runs if run.run_id == run_id)
        kept = last[run_id] if num_evaluations else {p: _varied(own) for p, own in last[run_id].items()}
        earlier = _spread([s for s in frames.stored.steps(run_id) if s < step], num_evaluations - 1)
        evaluations = [_evaluation(frames, run_id, s, setting.sources, problems) for s in earlier]
        evaluations.append(JudgedStep(step, {p: right[p] for p in problems if p in right}, kept))
        shown.append(ArmExcerpt(arm, run_id, name, tuple(evaluations)))
    return Excerpt(setting.name, tuple(problems), tuple(shown))


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """At most this many of the steps, evenly spread, the first among them."""
    number = min(len(steps), max(0, most))
    return [steps[i * len(steps) // number] for i in range(number)]


def _evaluation(
    frames: Frames, run_id: str, step: int, sources: Sequence[str], problems: Sequence[Problem]
) -> JudgedStep:
    right = _right(frames, run_id, step, sources)
    responses = _responses(frames, run_id, step, problems)
    return JudgedStep(step, {p: right[p] for p in problems if p in right}, responses)


def _responses(frames: Frames, run_id: str, step: int, problems: Sequence[Problem]) -> dict[Problem, list[Response]]:
    return grouped(frames.stored.responses(run_id, step, problems), lambda r: (r.source, r.problem_id))


def _counted(frames: Frames, arm: Arm, sources: Sequence[str]) -> tuple[str, int, Right] | None:
    """(run, step, by problem its correct and judged samples) of an arm's first finished run at its last evaluation."""
    for run_id, point in last_points(frames, arm).items():
        if right := _right(frames, run_id, point.after, sources):
            return run_id, point.after, right
    return None


def _right(frames: Frames, run_id: str, step: int, sources: Sequence[str]) -> Right:
    """By problem, its correct and judged samples in an evaluation."""
    right: Right = {}
    for source in sources:
        judged = frames.problem_counts(run_id, step, source)
        if judged is not None:
            pairs = zip(judged.c.tolist(), judged.n.tolist(), strict=True)
            right |= dict(zip(judged.problems, pairs, strict=True))
    return right


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
