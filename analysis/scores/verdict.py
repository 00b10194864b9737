"""Whether the runs of a study bear its claims out: each holds, is contradicted, undecided, or could not be tested."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.frames.frames import Frames
from analysis.scores import study, words
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, averaged, combine
from analysis.scores.cell import cell as last_cell
from analysis.scores.claim import Claim, Outcome, Verdict, Where, read
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import Compared, compare
from analysis.scores.contrast import Needed, Scores, equivalence, equivalent_within, needed
from analysis.scores.crossed import LEAST_SEEDS, Interval
from analysis.scores.metric import Kind, Metric, parse, widest
from analysis.scores.selection import references, select
from analysis.scores.sides import NotTested, reference_of, sides, trend
from analysis.scores.trajectory import Level, cell_of
from analysis.scores.trajectory import level as level_of

SATURATED = 0.03  # nearer to 0 or 1 than this a share has no room to differ


def verdicts(
    frames: Frames, level: float | None = None, claims: Sequence[Mapping[str, Any]] | None = None
) -> list[Verdict]:
    """A verdict on each claim of the study, in every setting with its arms. An ill-formed claim is not tested.

    level: of its intervals and tests; None: that of the study's stopping rule at its last look, else 95 %.
    claims: others than those that the study's newest launch recorded.
    """
    level = study.level(frames) if level is None else level
    settings = by_setting(frames, on_problems=False)
    found: list[Verdict] = []
    for content in study.claims(frames) if claims is None else claims:
        try:
            claim = read(content)
            for selector in filter(None, (claim.arm, claim.against or study.baseline(frames))):
                words.parse(selector)
        except ValueError as error:
            found.append(Verdict(_as_written(content), Outcome.NOT_TESTED, more=str(error)))
        else:
            found += _of(frames, claim, settings, level)
    return [_as_looked(study.stopping_rule(frames), verdict) for verdict in found]


def measure(frames: Frames) -> None:
    """Have every arm measured in what the claims are of. A bundle may hold a part of a study, whose claims are judged
    together with the other parts: its arms need not be those that a claim can be judged of here.
    """
    for setting in by_setting(frames, on_problems=False):
        for content in study.claims(frames):
            with contextlib.suppress(ValueError, LookupError):
                (metric,) = parse(read(content).metric, frames, [i for arm in setting.arms for i in arm.run_ids])
                for arm in setting.arms:
                    last_cell(frames, arm, metric, setting.sources)


def _as_written(content: Mapping[str, Any]) -> Claim:
    """A claim that cannot be read, in the words of its fields: it counts as the claim of whom it is of."""
    metric, arm, relation, printed, source = (
        str(content.get(key) or "") for key in ("metric", "arm", "relation", "printed", "source")
    )
    return Claim(str(content.get("says", content)), metric, arm, relation, printed=printed, source=source)


def name_of(verdict: Verdict) -> str:
    """What tells it from the others of its study: the claim, and the setting where there are several."""
    claim = verdict.claim
    name = f"{claim.says} ({claim.metric}, {claim.arm} {claim.relation})"
    return f"{name}, {verdict.setting}" if verdict.setting else name


def _as_looked(rule: Mapping[str, Any], verdict: Verdict) -> Verdict:
    """What a look of a stopping rule decided stays decided, whatever seeds others got since."""
    looks: Sequence[Mapping[str, Any]] = rule.get("looks", ())
    for number, look in enumerate(looks, start=1):
        decided = [each for each in look["questions"] if each["outcome"] in (Outcome.HOLDS, Outcome.CONTRADICTED)]
        for question in (each for each in decided if each["name"] == name_of(verdict)):
            at = f"look {number} of at most {len(rule['seeds'])}, {look['seeds']} seeds, level {look['level']:.2g}"
            return replace(verdict, outcome=Outcome(question["outcome"]), found=question["measured"], basis=at)
    return verdict


def _of(frames: Frames, claim: Claim, settings: Sequence[Comparable], level: float) -> list[Verdict]:
    here = [setting for setting in settings if select(setting.arms, claim.arm)]
    if not here:
        return [Verdict(claim, Outcome.NOT_TESTED, more=f"no arm has {claim.arm}")]
    return [replace(_in(frames, claim, setting, level), setting=setting.name) for setting in here]


def _in(frames: Frames, claim: Claim, setting: Comparable, level: float) -> Verdict:
    try:
        test = _Test.of(frames, claim, setting, level)
    except NotTested as why:
        return Verdict(claim, Outcome.NOT_TESTED, more=str(why))
    try:
        return test.verdict()
    except NotTested as why:
        groups = test.groups() if why.seeds else ()
        return Verdict(claim, Outcome.NOT_TESTED, more=str(why), groups=groups)


@dataclass(frozen=True)
class _Test:
    """A claim in one setting."""

    frames: Frames
    claim: Claim
    setting: Comparable
    metric: Metric
    level: float

    @classmethod
    def of(cls, frames: Frames, claim: Claim, setting: Comparable, level: float) -> _Test:
        try:
            (metric,) = parse(claim.metric, frames, [i for arm in setting.arms for i in arm.run_ids])
        except LookupError:
            raise NotTested(f"no run measured {claim.metric}") from None
        return cls(frames, claim, setting, metric, level)

    def verdict(self) -> Verdict:
        return self._trend() if self.claim.knob else self._against()

    # --- against a reference ---

    def _against(self) -> Verdict:
        pairs = self._pairs()
        judged = self._compared(pairs)
        outcome = self._outcome(judged)
        if outcome == Outcome.UNDECIDED:
            self._check_room([cell for pair in pairs.values() for cell in pair])
        # An equivalence may be of two arms at an end, where another arm shows that there was room.
        if outcome == Outcome.HOLDS and not self.claim.sign:
            every = [last_cell(self.frames, arm, self.metric, self.setting.sources) for arm in self.setting.arms]
            self._check_room([cell for cell in every if not cell.empty])
        if outcome != Outcome.UNDECIDED:
            self._check_survivors(pairs, judged)
        more = self._more(judged) if outcome == Outcome.UNDECIDED else ""
        wanted = max(min(cell.planned for cell in pair) for pair in pairs.values())
        diverged = max(cell.diverged for pair in pairs.values() for cell in pair)
        found, basis = self._found(judged), self._basis(judged, wanted, diverged)
        compared = tuple(judged.values())
        margin = None if self.claim.sign else self._margin
        return Verdict(self.claim, outcome, found, basis, more, self.groups(), compared, margin=margin)

    def groups(self) -> tuple[str, ...]:
        """Group ids of the arms that the claim speaks of, and of those that they are compared to."""
        own = select(self.setting.arms, self.claim.arm)
        if self.claim.knob:
            return tuple(arm.group_id for arm in own)
        found = references(self.setting.arms, self._reference)
        others = select(self.setting.arms, self._reference) if self.claim.of == "mean" else ()
        against = [found[arm.group_id] for arm in own if arm.group_id in found]
        return tuple(dict.fromkeys(arm.group_id for arm in (*own, *against, *others)))

    @property
    def _reference(self) -> str:
        return reference_of(self.claim, study.baseline(self.frames))

    def _sides(self) -> dict[str, tuple[Sequence[Arm], Sequence[Arm]]]:
        return sides(self.claim, self._reference, self.setting.arms)

    def _pairs(self) -> dict[str, tuple[Cell, Cell]]:
        """What the two sides of each comparison score."""
        found: dict[str, tuple[Cell, Cell]] = {}
        for label, (own, others) in self._sides().items():
            cells = self._cells([*own, *others])
            found[label] = (combine(cells[: len(own)]), combine(cells[len(own) :]))
        return found

    def _cells(self, arms: Sequence[Arm]) -> list[Cell]:
        """What arms score at the point of training that the claim names."""
        found = self._level(arms)
        if found.why or found.leans:
            raise NotTested(f"the arms are not at {self.claim.at}: {found.why or found.leans}")
        cells = [cell_of(self.frames, arm, self.metric, self.setting.sources, found) for arm in arms]
        for arm, cell in zip(arms, cells, strict=True):
            if cell.empty:
                raise NotTested(f"{arm.label} has no result: {_states(arm)}")
        return cells

    def _level(self, arms: Sequence[Arm]) -> Level:
        judges = [m for m in widest(self.setting.metrics) if m.kind == Kind.AVG]
        if self.claim.at == Where.ACCURACY and not judges:
            raise NotTested("equal accuracy needs avg@n, which no run measured")
        judge = judges[0] if judges else self.metric
        return level_of(self.frames, arms, self.claim.at, judge, self.setting.sources)

    def _compared(self, pairs: Mapping[str, tuple[Cell, Cell]]) -> dict[str, Compared]:
        counted = self.metric.kind in (Kind.AVG, Kind.PASS) and not self.frames.judgements.empty
        samples = self.frames.judgements.most_samples if counted else 0
        judged = compare(
            {k: a for k, (a, _) in pairs.items()}, {k: b for k, (_, b) in pairs.items()}, samples, self.level
        )
        if len(judged) < len(pairs):
            raise NotTested("some arm has no seed, or no problem, in common with what it is compared to")
        fewest = min(len(one.difference.seeds) for one in judged.values())
        if fewest < LEAST_SEEDS:
            of_runs = " of these runs" if fewest == 1 else ""
            why = f"too few seeds, {fewest} of at least {LEAST_SEEDS} (seen{of_runs}: {self._found(judged)})"
            raise NotTested(why, seeds=True)
        return judged

    def _check_room(self, cells: Sequence[Cell]) -> None:
        means = [cell.mean for cell in cells]
        if self.metric.scale > 1 and (min(means) > 1 - SATURATED or max(means) < SATURATED):
            low, high = 100 * min(means), 100 * max(means)
            raise NotTested(f"saturated: {low:.1f} to {high:.1f} % leave no room to differ")

    def _check_survivors(self, pairs: Mapping[str, tuple[Cell, Cell]], judged: Mapping[str, Compared]) -> None:
        """NotTested where runs that diverged may be why a claim is decided: those that are left had more luck. The side
        that is found more accurate must have lost none; of other numbers, and of equality, neither side.
        """
        against = [key for key, one in judged.items() if self._contradicts(one)]
        lost: dict[str, int] = {}
        for key in against or judged:
            own, other = (cell.diverged for cell in pairs[key])
            better = own if judged[key].effect > 0 else other
            lost[key] = better if self.claim.sign and self.metric.scale > 1 else own + other
        enough = min(lost.values()) == 0 if against else not any(lost.values())  # one arm contradicts, all must agree
        if not enough:
            raise NotTested(f"{_diverged(max(lost.values()))} (of the others: {self._found(judged)})")

    # --- what follows ---

    def _outcome(self, judged: Mapping[str, Compared]) -> Outcome:
        """It holds if it does for every arm by itself (an intersection of claims needs no correction); it is
        contradicted if any arm contradicts it within the family.
        """
        if all(self._settled(one) for one in judged.values()):
            return Outcome.HOLDS
        return Outcome.CONTRADICTED if any(self._contradicts(one) for one in judged.values()) else Outcome.UNDECIDED

    def _contradicts(self, one: Compared) -> bool:
        """Whether the opposite is decided of this arm, or that it lies beyond the margin."""
        if self.claim.sign:
            return one.decided and self._opposite(one)
        both = one.judged.simultaneous
        return both.low > self._margin or both.high < -self._margin

    @property
    def _margin(self) -> float:
        """Of an equivalence, as a share where the metric is one."""
        return self.claim.margin / self.metric.scale

    def _opposite(self, one: Compared) -> bool:
        return self.claim.sign * one.effect < 0

    def _settled(self, one: Compared) -> bool:
        """Whether the claim holds of this arm: of its sign, or by two one-sided tests within the margin."""
        if self.claim.sign:
            return one.judged.plain.excludes(0) and not self._opposite(one)
        return equivalence(one.judged.summary, self._margin) < 1 - self.level

    def _more(self, judged: Mapping[str, Compared]) -> str:
        """What the arm needs that needs most, if differences are what they look like."""
        open_ones = [one for one in judged.values() if not self._settled(one)]
        wanted = [self._needed(one) for one in open_ones]
        now = min(len(one.difference.seeds) for one in open_ones)
        seeds, problems = [n.seeds for n in wanted], [n.problems for n in wanted]
        if all(n is not None for n in seeds):
            return f"about {max(n or 0 for n in seeds) - now} more seeds"
        if all(one.judged.summary.alike for one in open_ones):
            return "all seeds agree"
        same = max(self.metric.scale * equivalent_within(one.judged.summary, self.level) for one in open_ones)
        rest = f"; {max(n or 0 for n in problems):,} problems would" if all(n is not None for n in problems) else ""
        within = f"{same:.3g} {self.metric.of_differences}".rstrip()
        return f"no number of seeds alone would decide it{rest}; the same within {within}"

    def _needed(self, one: Compared) -> Needed:
        if self._opposite(one):
            return one.needed  # to contradict the claim it must be decided within the family
        if self.claim.sign:
            return needed(one.judged.summary, one.difference.sampling, one.samples, alpha=1 - self.level)
        room = self._margin - abs(one.effect)
        if room < 0:  # as it looks the claim will be contradicted, which is decided within the family
            return needed(one.judged.summary, one.difference.sampling, one.samples, alpha=one.alpha, effect=-room)
        # TOST at 5 % rejects where a two-sided interval of 90 % lies within the margin; at other levels likewise.
        return needed(one.judged.summary, one.difference.sampling, one.samples, alpha=2 * (1 - self.level), effect=room)

    # --- a trend ---

    def _trend(self) -> Verdict:
        """The slope over the values of a knob, in their order, one step each: it holds if the slope does, and no step
        between neighbours is decidedly the other way; it is contradicted if the slope is. A step alone contradicts
        nothing: slope and steps, each wrong in 5 % of flat cases, would be in 8 % together."""
        arms = trend(self.claim, self.setting.arms)
        cells = self._cells(arms)
        steps = self._compared({a.label: (b, c) for a, b, c in zip(arms[1:], cells[1:], cells, strict=False)})
        slope = _slope([cell.scores for cell in cells if cell.scores is not None])
        if len(slope.seeds) < LEAST_SEEDS:
            why = f"too few seeds that all {len(arms)} values have, {len(slope.seeds)} of at least {LEAST_SEEDS}"
            raise NotTested(why, seeds=True)
        interval = slope.summary().interval(self.level)
        against = any(one.decided and self.claim.sign * one.effect < 0 for one in steps.values())
        if diverged := sum(cell.diverged for cell in cells):
            raise NotTested(f"{_diverged(diverged)}: those that are left had more luck")
        outcome = self._of_slope(float(slope.summary().mean), interval, against=against)
        text = self.metric.difference(float(slope.summary().mean), interval)
        more = ""
        if outcome == Outcome.UNDECIDED:
            wanted = needed(slope.summary(), math.nan, 0, alpha=1 - self.level).seeds
            more = f"about {wanted - len(slope.seeds)} more seeds" if wanted else "no number of seeds would decide it"
            if interval.excludes(0):
                more = "a step between neighbours is decidedly the other way"
        found = f"{text} per step over {len(arms)} values of {self.claim.knob}"
        return Verdict(
            self.claim,
            outcome,
            found,
            self._basis(steps, min(cell.planned for cell in cells), 0, slope),
            more,
            self.groups(),
        )

    def _of_slope(self, slope: float, interval: Interval, *, against: bool) -> Outcome:
        if not interval.excludes(0):
            return Outcome.UNDECIDED
        if self.claim.sign * slope < 0:
            return Outcome.CONTRADICTED
        return Outcome.UNDECIDED if against else Outcome.HOLDS

    # --- in words ---

    def _found(self, judged: Mapping[str, Compared]) -> str:
        """The difference, or the smallest and the largest of several, with the intervals that decide."""
        ordered = sorted(judged, key=lambda key: judged[key].effect)
        ends = dict.fromkeys([ordered[0], ordered[-1]])
        told = [self.metric.difference(judged[key].effect, self._interval(judged, key)) for key in ends]
        if len(judged) == 1:
            return told[0]
        return ", ".join(f"{text} ({key})" for text, key in zip(told, ends, strict=True))

    def _interval(self, judged: Mapping[str, Compared], key: str) -> Interval:
        one = judged[key].judged
        return one.summary.interval(2 * self.level - 1) if self._is_tost(judged) else one.simultaneous

    def _is_tost(self, judged: Mapping[str, Compared]) -> bool:
        """Whether two one-sided tests decide: at 5 % they ask that an interval of 90 % lie within the margin. That some
        difference is beyond it is decided as any difference is."""
        return not self.claim.sign and not any(self._contradicts(one) for one in judged.values())

    def _basis(self, judged: Mapping[str, Compared], wanted: int, diverged: int, slope: Scores | None = None) -> str:
        """wanted: seeds that both sides were planned with. diverged: runs of a side. slope: of a trend, which is one
        number, on the seeds and problems that all values have.
        """
        seeds = {len(x.difference.seeds) for x in judged.values()} if slope is None else {len(slope.seeds)}
        summary = next(iter(judged.values())).difference.summary if slope is None else slope.summary()
        on = f"{summary.num_problems} problems, " if summary.num_problems else ""
        tost = self._is_tost(judged)
        family = f", simultaneous over {len(judged)} arms" if len(judged) > 1 and not tost and slope is None else ""
        level = 2 * self.level - 1 if tost else self.level
        within = f"two one-sided tests at {100 * (1 - self.level):.4g} % within ± {self.claim.margin:g}"
        decides = f" ({within})" if tost else ""
        where = "last evaluations" if self.claim.at == Where.LAST else f"at {self.claim.at}"
        where += self._reached() if self.claim.at == Where.ACCURACY and not self.claim.knob else ""
        setting = f", {self.setting.name}" if self.setting.name else ""
        counted = f"{'/'.join(map(str, sorted(seeds)))}{f' of {wanted}' * (min(seeds) < wanted)} seeds"
        counted += f" ({diverged} diverged)" * (diverged > 0)
        return f"{self.metric}, {where}, {counted}, {on}{100 * level:.4g} %{decides}{family}{setting}"

    def _reached(self) -> str:
        """The accuracy at which arms are compared, and the run that reached no more."""
        together = ([*own, *others] for own, others in self._sides().values())
        levels = sorted((self._level(arms) for arms in together), key=lambda each: each.value)
        low, high = (f"{100 * each.value:.1f}" for each in (levels[0], levels[-1]))
        return f" ({low} %: {levels[0].lowest})" if low == high else f" ({low} to {high} %)"


def _slope(parts: Sequence[Scores]) -> Scores:
    """The least-squares slope over equal steps, cell by cell."""
    place = np.arange(len(parts)) - (len(parts) - 1) / 2
    found = averaged(parts, (place / (place**2).sum()).tolist())
    if found is None:
        raise NotTested("the arms have no seed, or no problem, in common")
    return found


def _diverged(runs: int) -> str:
    return f"{runs} run{'s' * (runs > 1)} diverged"


def _states(arm: Arm) -> str:
    return ", ".join(dict.fromkeys(run.state for run in arm.runs))
