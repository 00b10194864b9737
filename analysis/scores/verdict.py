"""Verdicts on the claims of a study from its runs: a claim holds, is contradicted, is undecided, or was not tested."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.frames.frames import Frames
from analysis.scores import labels
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, averaged, combine
from analysis.scores.cell import cell as last_cell
from analysis.scores.claim import Claim, Outcome, Verdict, Where, read
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import Compared, compare, more_problems, study_level
from analysis.scores.contrast import Needed, Scores, equivalence, equivalent_within, needed
from analysis.scores.crossed import LEAST_SEEDS, Interval
from analysis.scores.failures import intention_to_treat
from analysis.scores.metric import Kind, Metric, parse, widest
from analysis.scores.selection import NotTested, reference_of_claim, references, select, sides, trend
from analysis.scores.trajectory import Level, caveat_of_time, cell_of
from analysis.scores.trajectory import level as level_of

SATURATED = 0.03  # shares closer than this to 0 or 1 leave no room for a difference


def verdicts(
    frames: Frames, level: float | None = None, claims: Sequence[Mapping[str, Any]] | None = None
) -> list[Verdict]:
    """A verdict on each claim of the study, in every setting with its arms. An ill-formed claim is not tested.

    Of bundles of several studies each study's claims are judged on its own runs, against its own baseline.

    level: of intervals and tests; None: that of the study's stopping rule at its last look, else 95 %. claims: None:
    those that the study's newest launch recorded.
    """
    if claims is None and frames.studies:
        return [
            replace(v, claim=replace(v.claim, says=f"{v.claim.says} (study {part.study})"))
            for part in frames.studies
            for v in verdicts(part, level)
        ]
    level = study_level(frames) if level is None else level
    settings = by_setting(frames, on_problems=False)
    judged: list[Verdict] = []
    for content in frames.claims if claims is None else claims:
        try:
            claim = read(content)
            for selector in filter(None, (claim.arm, claim.against or frames.baseline)):
                labels.parse(selector)
        except ValueError as error:
            judged.append(Verdict(_as_written(content), Outcome.NOT_TESTED, note=str(error)))
        else:
            judged += _in_settings(frames, claim, settings, level)
    return [_with_past_looks(frames.stopping_rule, verdict) for verdict in judged]


def _as_written(content: Mapping[str, Any]) -> Claim:
    """A claim that cannot be read, with the texts of its fields, so that its origin is known."""
    metric, arm, relation, printed, source = (
        str(content.get(key) or "") for key in ("metric", "arm", "relation", "printed", "source")
    )
    return Claim(str(content.get("says", content)), metric, arm, relation, printed=printed, source=source)


def name_of(verdict: Verdict) -> str:
    """The name of a verdict, unique in its study: the claim, and the setting if there are several."""
    claim = verdict.claim
    name = f"{claim.says} ({claim.metric}, {claim.arm} {claim.relation})"
    return f"{name}, {verdict.setting}" if verdict.setting else name


def _with_past_looks(rule: Mapping[str, Any], verdict: Verdict) -> Verdict:
    """The verdict, or that of the first look of a stopping rule that decided it: more seeds since do not change it, and
    no further ones are asked for."""
    looks: Sequence[Mapping[str, Any]] = rule.get("looks", ())
    for number, look in enumerate(looks, start=1):
        for question in look["questions"]:
            is_decided = question["outcome"] in (Outcome.HOLDS, Outcome.CONTRADICTED)
            if is_decided and question["name"] == name_of(verdict):
                at = f"look {number} of at most {len(rule['seeds'])}, {look['seeds']} seeds, level {look['level']:.2g}"
                outcome = Outcome(question["outcome"])
                return replace(verdict, outcome=outcome, measured=question["measured"], basis=at, note="")
    return verdict


def _in_settings(frames: Frames, claim: Claim, settings: Sequence[Comparable], level: float) -> list[Verdict]:
    with_arms = [setting for setting in settings if select(setting.arms, claim.arm)]
    if not with_arms:
        return [Verdict(claim, Outcome.NOT_TESTED, note=f"no arm has {claim.arm}")]
    return [replace(_in_setting(frames, claim, setting, level), setting=setting.name) for setting in with_arms]


def _in_setting(frames: Frames, claim: Claim, setting: Comparable, level: float) -> Verdict:
    try:
        test = _Test.of(frames, claim, setting, level)
    except NotTested as error:
        return Verdict(claim, Outcome.NOT_TESTED, note=str(error))
    try:
        return test.verdict()
    except NotTested as error:
        groups = test.groups() if error.seeds else ()
        return Verdict(claim, Outcome.NOT_TESTED, note=str(error), groups=groups)


@dataclass(frozen=True)
class _Test:
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
        # Two equivalent arms may both be saturated if another arm of the setting shows that there was room.
        if outcome == Outcome.HOLDS and not self.claim.sign:
            all_cells = [last_cell(self.frames, arm, self.metric, self.setting.sources) for arm in self.setting.arms]
            self._check_room([cell for cell in all_cells if not cell.empty])
        if outcome != Outcome.UNDECIDED:
            self._check_survivors(pairs, judged)
        more = self._more(judged) if outcome == Outcome.UNDECIDED else ""
        planned = max(min(cell.planned for cell in pair) for pair in pairs.values())
        diverged = max(cell.diverged for pair in pairs.values() for cell in pair)
        measured, basis = self._measured(judged), self._basis(judged, planned, diverged)
        compared = tuple(judged.values())
        margin = None if self.claim.sign else self._margin
        return Verdict(self.claim, outcome, measured, basis, more, self.groups(), compared, margin=margin)

    def groups(self) -> tuple[str, ...]:
        """Group ids of the claim's arms and of the arms that they are compared to."""
        claimed = select(self.setting.arms, self.claim.arm)
        if self.claim.knob:
            return tuple(arm.group_id for arm in claimed)
        reference = references(self.setting.arms, self._reference)
        against = [reference[arm.group_id] for arm in claimed if arm.group_id in reference]
        of_mean = select(self.setting.arms, self._reference) if self.claim.of == "mean" else ()
        return tuple(dict.fromkeys(arm.group_id for arm in (*claimed, *against, *of_mean)))

    @property
    def _reference(self) -> str:
        return reference_of_claim(self.claim, self.frames.baseline)

    def _sides(self) -> dict[str, tuple[Sequence[Arm], Sequence[Arm]]]:
        return sides(self.claim, self._reference, self.setting.arms)

    def _pairs(self) -> dict[str, tuple[Cell, Cell]]:
        pairs: dict[str, tuple[Cell, Cell]] = {}
        for label, (arms, reference_arms) in self._sides().items():
            cells = self._cells([*arms, *reference_arms])
            pairs[label] = (combine(cells[: len(arms)]), combine(cells[len(arms) :]))
        return pairs

    def _cells(self, arms: Sequence[Arm]) -> list[Cell]:
        if caveat := caveat_of_time(self.metric, arms):
            raise NotTested(f"{self.metric} does not decide: {caveat}")
        level = self._level(arms)
        if level.why or level.caveat:
            raise NotTested(f"the arms are not at {self.claim.at}: {level.why or level.caveat}")
        cells = [cell_of(self.frames, arm, self.metric, self.setting.sources, level) for arm in arms]
        for arm, cell in zip(arms, cells, strict=True):
            if cell.empty:
                states = dict.fromkeys(run.state for run in arm.runs)
                raise NotTested(f"{arm.label} has no result: {', '.join(states)}")
        return cells

    def _level(self, arms: Sequence[Arm]) -> Level:
        judges = [m for m in widest(self.setting.metrics) if m.kind == Kind.AVG]
        if self.claim.at == Where.ACCURACY and not judges:
            raise NotTested("equal accuracy needs avg@n, which no run measured")
        judge = judges[0] if judges else self.metric
        return level_of(self.frames, arms, self.claim.at, judge, self.setting.sources)

    def _compared(self, pairs: Mapping[str, tuple[Cell, Cell]]) -> dict[str, Compared]:
        of_arms, of_references = ({key: pair[side] for key, pair in pairs.items()} for side in (0, 1))
        more = more_problems(self.setting.arms)
        judged = compare(of_arms, of_references, 0, self.level, more_problems=more, survivors=True)
        if len(judged) < len(pairs):
            raise NotTested("some arm has no seed, or no problem, in common with what it is compared to")
        fewest = min(len(compared.difference.seeds) for compared in judged.values())
        if fewest < LEAST_SEEDS:
            of_runs = " of these runs" if fewest == 1 else ""
            why = f"too few seeds, {fewest} of at least {LEAST_SEEDS} (seen{of_runs}: {self._measured(judged)})"
            raise NotTested(why, seeds=True)
        return judged

    def _check_room(self, cells: Sequence[Cell]) -> None:
        """Raises NotTested if all scores are so close to 0 or to 1 that they could not differ."""
        means = [cell.mean for cell in cells]
        if self.metric.scale > 1 and (min(means) > 1 - SATURATED or max(means) < SATURATED):
            low, high = 100 * min(means), 100 * max(means)
            raise NotTested(f"saturated: {low:.1f} to {high:.1f} % leave no room to differ")

    def _check_survivors(self, pairs: Mapping[str, tuple[Cell, Cell]], judged: Mapping[str, Compared]) -> None:
        """Raises NotTested if a claim may be decided because some runs diverged: the remaining runs were the luckier
        ones. For shares, the side with the higher score must have no diverged run; for other numbers, and for an
        equivalence, neither side may have one.
        """
        contradicting = [key for key, compared in judged.items() if self._contradicts(compared)]
        num_diverged: dict[str, int] = {}
        for key in contradicting or judged:
            of_arms, of_reference = (cell.diverged for cell in pairs[key])
            of_better = of_arms if judged[key].effect > 0 else of_reference
            num_diverged[key] = of_better if self.claim.sign and self.metric.scale > 1 else of_arms + of_reference
        # One arm suffices to contradict a claim; for a claim that holds all arms must be without such runs.
        enough = min(num_diverged.values()) == 0 if contradicting else not any(num_diverged.values())
        if not enough:
            sides, treated = list(self._sides().values()), ""
            if len(sides) == 1 and self.claim.at == Where.LAST:
                treated = intention_to_treat(self.frames, *sides[0], self.metric, self.setting.sources, self.level)
            text = "; ".join(filter(None, [f"of the others: {self._measured(judged)}", treated]))
            raise NotTested(f"{_diverged(max(num_diverged.values()))} ({text})")

    # --- the outcome ---

    def _outcome(self, judged: Mapping[str, Compared]) -> Outcome:
        """The claim holds if it holds for every arm by itself (an intersection of claims needs no correction); it is
        contradicted if any arm contradicts it within the family.
        """
        if all(self._holds(compared) for compared in judged.values()):
            return Outcome.HOLDS
        if any(self._contradicts(compared) for compared in judged.values()):
            return Outcome.CONTRADICTED
        return Outcome.UNDECIDED

    def _contradicts(self, compared: Compared) -> bool:
        """Whether this difference is decidedly of the opposite sign or, for an equivalence, beyond the margin."""
        if self.claim.sign:
            return compared.decided and self._is_opposite(compared)
        interval = compared.judged.simultaneous
        return interval.low > self._margin or interval.high < -self._margin

    @property
    def _margin(self) -> float:
        """The margin of an equivalence, as a share if the metric is one."""
        return self.claim.margin / self.metric.scale

    def _is_opposite(self, compared: Compared) -> bool:
        return self.claim.sign * compared.effect < 0

    def _holds(self, compared: Compared) -> bool:
        """Whether the claim holds for this arm: by its sign, or by two one-sided tests within the margin."""
        if self.claim.sign:
            return compared.judged.plain.excludes(0) and not self._is_opposite(compared)
        return equivalence(compared.judged.summary, self._margin) < 1 - self.level

    def _more(self, judged: Mapping[str, Compared]) -> str:
        """The numbers that would decide the claim for every arm, if differences are as measured."""
        undecided = [compared for compared in judged.values() if not self._holds(compared)]
        counts = [self._needed(compared) for compared in undecided]
        now = min(len(compared.difference.seeds) for compared in undecided)
        seeds, problems = [count.seeds for count in counts], [count.problems for count in counts]
        if all(n is not None for n in seeds):
            return f"about {max(n or 0 for n in seeds) - now} more seeds"
        if all(compared.judged.summary.alike for compared in undecided):
            return "all seeds agree"
        same = max(self.metric.scale * equivalent_within(c.judged.summary, self.level) for c in undecided)
        more = all(n is not None for n in problems) and all(compared.more_problems for compared in undecided)
        would = f"; {max(n or 0 for n in problems):,} problems would" if more else ""
        within = f"{same:.3g} {self.metric.of_differences}".rstrip()
        return f"no number of seeds alone would decide it{would}; the same within {within}"

    def _needed(self, compared: Compared) -> Needed:
        if self._is_opposite(compared):
            return compared.needed  # to contradict the claim, it must be decided within the family
        summary, sampling = compared.judged.summary, compared.difference.sampling
        if self.claim.sign:
            return needed(summary, sampling, 0, alpha=1 - self.level)
        room = self._margin - abs(compared.effect)
        if room < 0:  # by this difference the claim would be contradicted, which is decided within the family
            return needed(summary, sampling, 0, alpha=compared.alpha, effect=-room)
        # TOST at 5 % rejects if a two-sided interval of 90 % lies within the margin; at other levels likewise.
        return needed(summary, sampling, 0, alpha=2 * (1 - self.level), effect=room)

    # --- a trend ---

    def _trend(self) -> Verdict:
        """The verdict on the slope over the values of a knob, in their order, one step each.

        The claim holds if the slope has its sign and no step between neighbours decidedly has the other. It is
        contradicted if the slope has the other sign. A step alone contradicts nothing: slope and steps, each wrong in
        5 % of flat cases, would together be wrong in 8 %.
        """
        arms = trend(self.claim, self.setting.arms)
        cells = self._cells(arms)
        steps = self._compared({a.label: (b, c) for a, b, c in zip(arms[1:], cells[1:], cells, strict=False)})
        slope = _slope([cell.scores for cell in cells if cell.scores is not None]).complete()
        if len(slope.seeds) < LEAST_SEEDS:
            why = f"too few seeds that all {len(arms)} values have, {len(slope.seeds)} of at least {LEAST_SEEDS}"
            raise NotTested(why, seeds=True)
        summary = slope.summary(signed=True)
        interval = summary.interval(self.level)
        against = any(step.decided and self._is_opposite(step) for step in steps.values())
        if diverged := sum(cell.diverged for cell in cells):
            raise NotTested(f"{_diverged(diverged)}: the remaining runs were the luckier ones")
        outcome = self._outcome_of_slope(float(summary.mean), interval, against=against)
        text = self.metric.difference(float(summary.mean), interval)
        more = ""
        if outcome == Outcome.UNDECIDED:
            self._check_room(cells)
            seeds = needed(summary, math.nan, 0, alpha=1 - self.level).seeds
            more = f"about {seeds - len(slope.seeds)} more seeds" if seeds else "no number of seeds would decide it"
            if interval.excludes(0):
                more = "a step between neighbours is decidedly the other way"
        measured = f"{text} per step over {len(arms)} values of {self.claim.knob}"
        return Verdict(
            self.claim,
            outcome,
            measured,
            self._basis(steps, min(cell.planned for cell in cells), 0, slope),
            more,
            self.groups(),
        )

    def _outcome_of_slope(self, slope: float, interval: Interval, *, against: bool) -> Outcome:
        if not interval.excludes(0):
            return Outcome.UNDECIDED
        if self.claim.sign * slope < 0:
            return Outcome.CONTRADICTED
        return Outcome.UNDECIDED if against else Outcome.HOLDS

    # --- in words ---

    def _measured(self, judged: Mapping[str, Compared]) -> str:
        """The difference, or the smallest and the largest of several, with the intervals that decide."""
        ordered = sorted(judged, key=lambda key: judged[key].effect)
        ends = dict.fromkeys([ordered[0], ordered[-1]])
        texts = [self.metric.difference(judged[key].effect, self._interval(judged, key)) for key in ends]
        if len(judged) == 1:
            return texts[0]
        return ", ".join(f"{text} ({key})" for text, key in zip(texts, ends, strict=True))

    def _interval(self, judged: Mapping[str, Compared], key: str) -> Interval:
        difference = judged[key].judged
        return difference.summary.interval(2 * self.level - 1) if self._is_tost(judged) else difference.simultaneous

    def _is_tost(self, judged: Mapping[str, Compared]) -> bool:
        """Whether two one-sided tests decide: at 5 % they need an interval of 90 % within the margin. That a difference
        is beyond the margin is decided by its simultaneous interval, as for other claims."""
        return not self.claim.sign and not any(self._contradicts(compared) for compared in judged.values())

    def _basis(self, judged: Mapping[str, Compared], planned: int, diverged: int, slope: Scores | None = None) -> str:
        """The seeds, problems and level on which an outcome rests, in words.

        planned: seeds that both sides were planned with. diverged: runs of a side. slope: of a trend, one number on the
        seeds and problems that all values of the knob have.
        """
        if slope is None:
            seeds = {len(compared.difference.seeds) for compared in judged.values()}
        else:
            seeds = {len(slope.seeds)}
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
        num_seeds = f"{'/'.join(map(str, sorted(seeds)))}{f' of {planned}' * (min(seeds) < planned)} seeds"
        num_seeds += f" ({diverged} diverged)" * (diverged > 0)
        return f"{self.metric}, {where}, {num_seeds}, {on}{100 * level:.4g} %{decides}{family}{setting}"

    def _reached(self) -> str:
        """The accuracy at which arms are compared, and the run that reached no more."""
        both_sides = ([*arms, *reference_arms] for arms, reference_arms in self._sides().values())
        levels = sorted((self._level(arms) for arms in both_sides), key=lambda level: level.value)
        low, high = (f"{100 * level.value:.1f}" for level in (levels[0], levels[-1]))
        return f" ({low} %: {levels[0].lowest})" if low == high else f" ({low} to {high} %)"


def _slope(parts: Sequence[Scores]) -> Scores:
    place = np.arange(len(parts)) - (len(parts) - 1) / 2
    slope = averaged(parts, (place / (place**2).sum()).tolist())
    if slope is None:
        raise NotTested("the arms have no seed, or no problem, in common")
    return slope


def _diverged(runs: int) -> str:
    return f"{runs} run{'s' * (runs > 1)} diverged"
