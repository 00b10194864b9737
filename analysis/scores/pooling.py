"""Whether the differences of several base policies are of one claim, what they are over all, and their words."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.frames import own_code
from analysis.frames.frames import Frames, RunRow
from analysis.scores import labels
from analysis.scores.arm import BASE_POLICY, Arm, describe, null_in_some, repeats
from analysis.scores.bases import OverBases, over_bases
from analysis.scores.comparison import Compared
from analysis.scores.contrast import Scores
from analysis.scores.family import Judged
from analysis.scores.metric import Metric
from analysis.scores.selection import NotTested


def check_alike(frames: Frames, of_bases: Sequence[Sequence[Arm]]) -> None:
    """Raises NotTested where one arm of a claim is not trained alike on all base policies, in its knobs or its code:
    labels name only what the arms of one setting do not share. of_bases: the claim's arms, in the same order."""
    if len({len(arms) for arms in of_bases}) > 1:
        named = " | ".join(dict.fromkeys(", ".join(arm.label for arm in arms) for arms in of_bases))
        raise NotTested(f"the base policies differ in their arms: {named}")
    for arms in zip(*of_bases, strict=True):
        runs, tuned = [arm.first for arm in arms], arms[0].tuned
        keys = {k for run in runs for k in run.config if not k.startswith((BASE_POLICY, "choices.")) and k != "seed"}
        of_arm = (k for k in sorted(keys) if not labels.covers(tuned, k) and not repeats(runs, k))
        if unlike := [key for key in of_arm if _differs(runs, key)]:
            shown = [replace(run, config={**dict.fromkeys(unlike, "null"), **run.config}) for run in runs]
            values = " | ".join(dict.fromkeys(describe(run, unlike) for run in shown))
            raise NotTested(f"an arm differs between the base policies: {values}")
        _check_code(frames, arms)


def _check_code(frames: Frames, arms: Sequence[Arm]) -> None:
    runs = frames.runs[frames.runs["run_id"].isin([run_id for arm in arms for run_id in arm.run_ids])]
    try:
        if not frames.mixed_code:
            own_code.refuse_mixed(runs.assign(group_id=arms[0].group_id).reset_index(drop=True))
    except LookupError as error:
        raise NotTested(str(error.args[0])) from None


def _differs(runs: Sequence[RunRow], key: str) -> bool:
    """Whether the runs differ in a knob."""
    first, *others = (str(run.config[key]) for run in runs if key in run.config)
    return null_in_some(runs, key) or not all(labels.equal(first, other) for other in others)


def judged(of_bases: Mapping[str, Mapping[str, Compared]], level: float) -> dict[str, Compared]:
    """Each difference over all bases, by itself and (by Bonferroni) with the others of the claim. of_bases: by base, of
    arms that are alike, by their labels there."""
    labels_of_first, of_all = next(iter(of_bases.values())), dict[str, Compared]()
    size = len(labels_of_first)
    for label, *compared in zip(labels_of_first, *(of_base.values() for of_base in of_bases.values()), strict=True):
        of_label = over(dict(zip(of_bases, (of_base.difference.scores for of_base in compared), strict=True)))
        alpha, p = (1 - level) / size, of_label.summary.p_value()
        intervals = of_label.summary.interval(level), of_label.summary.interval(1 - alpha)
        decided = Judged(*intervals, p, min(size * p, 1.0), of_label.summary)
        more = all(of_base.more_problems for of_base in compared)
        of_all[label] = replace(
            compared[0], difference=of_label, judged=decided, size=size, alpha=alpha, more_problems=more
        )
    return of_all


def over(of_bases: Mapping[str, Scores]) -> OverBases:
    """A difference over all bases. of_bases: by base, as of `over_bases`. Raises NotTested, naming the bases that share
    no problem with most others, as one of which only means are left."""
    problems = {name: {*scores.problems} for name, scores in of_bases.items()}
    most = max(problems.values(), key=lambda of_base: sum(not of_base.isdisjoint(of) for of in problems.values()))
    if apart := [name for name, of_base in problems.items() if of_base.isdisjoint(most)]:
        raise NotTested(f"no problem in common with the other base policies: {', '.join(apart)}")
    return over_bases([*of_bases.values()])


def seeds(of_all: Mapping[str, Compared], planned: Sequence[int]) -> str:
    """`5 seeds`, `1/3 seeds of 3 planned`: of each base policy. planned: in each."""
    of_bases = [num_seeds for difference in _over(of_all) for num_seeds in difference.num_seeds]
    is_short = any(n < m for difference in _over(of_all) for n, m in zip(difference.num_seeds, planned, strict=True))
    each, all_planned = ("/".join(map(str, sorted({*numbers}))) for numbers in (of_bases, planned))
    return f"{each} seed{'s' * (each != '1')}" + f" of {all_planned} planned" * is_short


def spreads(of_all: Mapping[str, Compared], metric: Metric) -> list[str]:
    """`τ = 0.8 points, I² = 41 %`: of the differences between bases."""
    of_differences = [difference.spread for difference in _over(of_all) if difference.spread]
    unit = f" {metric.of_differences}".rstrip()
    return [f"τ = {metric.scale * s.tau2**0.5:.2g}{unit}, I² = {100 * s.i2:.0f} %" for s in of_differences]


def _over(of_all: Mapping[str, Compared]) -> list[OverBases]:
    return [of.difference for of in of_all.values() if isinstance(of.difference, OverBases)]
