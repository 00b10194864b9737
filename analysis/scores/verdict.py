"""Verdicts on the claims of a study from its runs: a claim holds, is contradicted, is undecided, or was not tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from analysis.frames.frames import Frames, grouped
from analysis.scores import labels, pooling
from analysis.scores.arm import Arm
from analysis.scores.cell import NOT_MEASURED, Cell, averaged, combine
from analysis.scores.cell import cell as last_cell
from analysis.scores.claim import Claim, Outcome, Verdict, Where, read
from analysis.scores.comparable import Comparable, by_setting
from analysis.scores.comparison import Compared, compare, more_problems, study_level
from analysis.scores.contrast import Scores, needed
from analysis.scores.crossed import LEAST_SEEDS, Crossed
from analysis.scores.decision import Decision
from analysis.scores.failures import intention_to_treat
from analysis.scores.metric import Kind, parse, widest
from analysis.scores.selection import (
    NotTested,
    reference_of_claim,
    references,
    select,
    sides,
    trend,
    untested,
    value_of,
)
from analysis.scores.trajectory import Level, caveat_of_time, cell_of
from analysis.scores.trajectory import level as level_of

T = TypeVar("T")

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
    return judged


def _as_written(content: object) -> Claim:
    """A claim that cannot be read, with the texts of its fields, so that its origin is known."""
    known = cast("Mapping[str, object]", content) if isinstance(content, Mapping) else {}
    metric, arm, relation, printed, source = (
        str(known.get(key) or "") for key in ("metric", "arm", "relation", "printed", "source")
    )
    return Claim(str(known.get("says", content)), metric, arm, relation, printed=printed, source=source)


def name_of(verdict: Verdict) -> str:
    """The name of a verdict, unique in its study: the claim, and the setting if there are several."""
    claim = verdict.claim
    name = f"{claim.says} ({claim.metric}, {claim.arm} {claim.relation})"
    return f"{name}, {verdict.setting}" if verdict.setting else name


def _with_past_looks(rule: Mapping[str, Any], verdict: Verdict, groups: Sequence[str]) -> Verdict:
    """The verdict, or that of the first look of a stopping rule that decided it: more seeds since do not change it, and
    no further ones are asked for. groups: of the arms that the claim is about; the name of their setting may change."""
    looks: Sequence[Mapping[str, Any]] = rule.get("looks", ())
    for number, look in enumerate(looks, start=1):
        for question in look["questions"]:
            is_decided = question["outcome"] in (Outcome.HOLDS, Outcome.CONTRADICTED)
            is_same = f"{question['name']}, ".startswith(f"{name_of(verdict)}, ") and {*question["groups"]} == {*groups}
            if is_decided and is_same:
                at = f"look {number} of at most {len(rule['seeds'])}, {look['seeds']} seeds, level {look['level']:.2g}"
                outcome = Outcome(question["outcome"])
                return replace(verdict, outcome=outcome, measured=question["measured"], basis=at, note="")
    return verdict


def _in_settings(frames: Frames, claim: Claim, settings: Sequence[Comparable], level: float) -> list[Verdict]:
    """A verdict for each setting; for those that differ by the base policy alone one, over all with its arms."""
    with_arms = [setting for setting in settings if select(setting.arms, claim.arm)]
    places = grouped(with_arms, lambda setting: setting.arms[0].place)
    if not places:
        return [Verdict(claim, Outcome.NOT_TESTED, note=f"no arm has {claim.arm}")]
    reference = reference_of_claim(claim, frames.baseline)
    judged = list[Verdict]()
    for place, of_place in places.items():
        why = {setting.name: untested(claim, reference, setting.arms) for setting in of_place}
        bases = [setting for setting in of_place if not why[setting.name]]
        left_out = tuple(f"{name}: left out, {text}" for name, text in why.items() if text and bases)
        judged.append(replace(_in_place(frames, claim, place, bases or of_place, level), left_out=left_out))
    return judged


def _in_place(frames: Frames, claim: Claim, place: str, bases: Sequence[Comparable], level: float) -> Verdict:
    """The verdict over settings that differ by their base policy alone, or in the only one."""
    try:
        (metric,) = parse(claim.metric, frames, [i for setting in bases for arm in setting.arms for i in arm.run_ids])
    except LookupError:
        name = place if len(bases) > 1 else bases[0].name
        return Verdict(claim, Outcome.NOT_TESTED, note=f"no run measured {claim.metric}", setting=name)
    tests = tuple(_Test(claim, metric, level, frames, setting) for setting in bases)
    alone = tuple(replace(_verdict(test), setting=test.setting.name) for test in tests)
    if len(tests) == 1:
        return alone[0]
    of_all = _TestOverBases(claim, metric, level, frames, replace(bases[0], name=place), tests)
    return replace(_verdict(of_all), setting=place, bases=alone)


def _verdict(test: _Test) -> Verdict:
    try:
        verdict = test.verdict()
    except NotTested as error:
        groups = test.groups() if error.seeds else ()
        verdict = Verdict(test.claim, Outcome.NOT_TESTED, note=str(error), groups=groups)
    return _with_past_looks(test.frames.stopping_rule, verdict, test.groups())


@dataclass(frozen=True)
class _Test(Decision):
    """A claim in one setting."""

    frames: Frames
    setting: Comparable

    def verdict(self) -> Verdict:
        return self._trend() if self.claim.knob else self._against()

    # --- against a reference ---

    def _against(self) -> Verdict:
        pairs, judged = self.paired()
        self._check_repeats(judged)
        outcome = self._outcome(judged)
        if outcome == Outcome.UNDECIDED:
            self._check_room([cell for pair in pairs.values() for cell in pair])
        if outcome == Outcome.HOLDS and not self.claim.sign:
            self.check_room_of_setting()
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

    def check_room_of_setting(self) -> None:
        """Two equivalent arms may both be saturated if another arm of the setting shows that there was room."""
        cells = [last_cell(self.frames, arm, self.metric, self.setting.sources) for arm in self.setting.arms]
        self._check_room([cell for cell in cells if not cell.empty])

    def paired(self) -> tuple[dict[str, tuple[Cell, Cell]], dict[str, Compared]]:
        """By label, the two sides of each comparison of the claim, and their difference. Raises NotTested."""
        pairs: dict[str, tuple[Cell, Cell]] = {}
        for label, (arms, reference_arms) in self._sides().items():
            cells = self._cells([*arms, *reference_arms])
            pairs[label] = (combine(cells[: len(arms)]), combine(cells[len(arms) :]))
        return pairs, self._compared(pairs)

    def _cells(self, arms: Sequence[Arm]) -> list[Cell]:
        if caveat := caveat_of_time(self.metric, arms):
            raise NotTested(f"{self.metric} does not decide: {caveat}")
        level = self._level(arms)
        if level.why or level.caveat:
            raise NotTested(f"the arms are not at {self.claim.at}: {level.why or level.caveat}")
        asked = (self.metric, self.setting.sources)
        if self.claim.at == Where.LAST:  # where runs that diverged count in metrics of REACH
            cells = [last_cell(self.frames, arm, *asked) for arm in arms]
        else:
            cells = [cell_of(self.frames, arm, *asked, level) for arm in arms]
        for arm, cell in zip(arms, cells, strict=True):
            if cell.empty:
                states = [NOT_MEASURED] if cell.state == NOT_MEASURED else dict.fromkeys(run.state for run in arm.runs)
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
        judged = compare(of_arms, of_references, self.level, more_problems=more, survivors=True)
        if len(judged) < len(pairs):
            raise NotTested("some arm has no seed, or no problem, in common with what it is compared to")
        return judged

    def _check_repeats(self, judged: Mapping[str, Compared]) -> None:
        """Raises NotTested for differences over too few seeds."""
        fewest = min(len(compared.difference.seeds) for compared in judged.values())
        if fewest < LEAST_SEEDS:
            of_runs = " of these runs" if fewest == 1 else ""
            why = f"too few {self.REPEATS}, {fewest} of at least {LEAST_SEEDS}"
            of_seeds = self.REPEATS == Decision.REPEATS
            raise NotTested(f"{why} (seen{of_runs}: {self._measured(judged)})", seeds=of_seeds)

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
            text = "; ".join(filter(None, [f"of the others: {self._measured(judged)}", self.treated()]))
            raise NotTested(f"{_diverged(max(num_diverged.values()))} ({text})")

    def treated(self) -> str:
        """The difference with diverged runs counted, in words; "" where it is none of two sides at their ends."""
        sides = list(self._sides().values())
        if len(sides) > 1 or self.claim.at != Where.LAST:
            return ""
        return intention_to_treat(self.frames, *sides[0], self.metric, self.setting.sources, self.level)

    # --- a trend ---

    def _trend(self) -> Verdict:
        """The verdict on the slope over the values of a knob, in their order, one step each.

        The claim holds if the slope has its sign and no step between neighbours decidedly has the other. It is
        contradicted if the slope has the other sign. A step alone contradicts nothing: slope and steps, each wrong in
        5 % of flat cases, would together be wrong in 8 %.
        """
        cells, steps, slope = self.along()
        self._check_repeats(steps)
        if slope.num_seeds < LEAST_SEEDS:
            why = f"{self.REPEATS} that all {len(cells)} values have, {slope.num_seeds} of at least {LEAST_SEEDS}"
            raise NotTested(f"too few {why}", seeds=True)
        interval = slope.interval(self.level)
        against = any(step.decided and self._is_opposite(step) for step in steps.values())
        if diverged := sum(cell.diverged for cell in cells):
            raise NotTested(f"{_diverged(diverged)}: the remaining runs were the luckier ones")
        outcome = self._outcome_of_slope(float(slope.mean), interval, against=against)
        text = self.metric.difference(float(slope.mean), interval)
        more = ""
        if outcome == Outcome.UNDECIDED:
            self._check_room(cells)
            seeds = needed(slope, math.nan, alpha=1 - self.level).seeds
            more = self._about(seeds - slope.num_seeds) if seeds else f"no number of {self.REPEATS} would decide it"
            if interval.excludes(0):
                more = "a step between neighbours is decidedly the other way"
        measured = f"{text} per step over {len(cells)} values of {self.claim.knob}"
        return Verdict(
            self.claim,
            outcome,
            measured,
            self._basis(steps, min(cell.planned for cell in cells), 0, slope),
            more,
            self.groups(),
        )

    def along(self) -> tuple[list[Cell], dict[str, Compared], Crossed]:
        """The arms of a trend in order, each one's difference to the one before, and the slope. Raises NotTested."""
        cells, steps, slope = self.slope()
        return cells, steps, slope.summary(signed=True)

    def slope(self) -> tuple[list[Cell], dict[str, Compared], Scores]:
        arms = trend(self.claim, self.setting.arms)
        cells = self._cells(arms)
        steps = self._compared({a.label: (b, c) for a, b, c in zip(arms[1:], cells[1:], cells, strict=False)})
        return cells, steps, _slope([cell.scores for cell in cells if cell.scores is not None]).complete()

    # --- in words ---

    def _basis(self, judged: Mapping[str, Compared], planned: int, diverged: int, slope: Crossed | None = None) -> str:
        """The seeds, problems and level on which an outcome rests, in words.

        planned: seeds that both sides were planned with. diverged: runs of a side. slope: of a trend, on the seeds and
        problems that all values of the knob have.
        """
        if slope is None:
            seeds = {len(compared.difference.seeds) for compared in judged.values()}
        else:
            seeds = {slope.num_seeds}
        summary = slope or next(iter(judged.values())).difference.summary
        on = f"{summary.num_problems} problems, " if summary.num_problems else ""
        tost = self._is_tost(judged)
        family = f", simultaneous over {len(judged)} arms" if len(judged) > 1 and not tost and slope is None else ""
        level = 2 * self.level - 1 if tost else self.level
        within = f"two one-sided tests at {100 * (1 - self.level):.4g} % within ± {self.claim.margin:g}"
        decides = f" ({within})" if tost else ""
        where = "last evaluations" if self.claim.at == Where.LAST else f"at {self.claim.at}"
        where += self._reached() if self.claim.at == Where.ACCURACY and not self.claim.knob else ""
        setting = f", {self.setting.name}" if self.setting.name else ""
        num_seeds = self._repeats(judged, seeds, planned) + f" ({diverged} diverged)" * (diverged > 0)
        return f"{self.metric}, {where}, {num_seeds}, {on}{100 * level:.4g} %{decides}{family}{setting}"

    def _repeats(self, judged: Mapping[str, Compared], seeds: set[int], planned: int) -> str:
        return f"{'/'.join(map(str, sorted(seeds)))}{f' of {planned}' * (min(seeds) < planned)} seeds"

    def levels(self) -> list[Level]:
        both_sides = ([*arms, *reference_arms] for arms, reference_arms in self._sides().values())
        return [self._level(arms) for arms in both_sides]

    def _reached(self) -> str:
        """The accuracy at which arms are compared, and the run that reached no more."""
        levels = sorted(self.levels(), key=lambda level: level.value)
        low, high = (f"{100 * level.value:.1f}" for level in (levels[0], levels[-1]))
        return f" ({low} %: {levels[0].lowest})" if low == high else f" ({low} to {high} %)"


@dataclass(frozen=True)
class _TestOverBases(_Test):
    """A claim in settings that differ by their base policy alone. bases: the same claim in each of them."""

    bases: tuple[_Test, ...]

    REPEAT, REPEATS = "base policy", "base policies"

    def groups(self) -> tuple[str, ...]:
        return tuple(group for base in self.bases for group in base.groups())

    def levels(self) -> list[Level]:
        return [level for base in self.bases for level in base.levels()]

    def check_room_of_setting(self) -> None:
        self._of_each(_Test.check_room_of_setting)

    def treated(self) -> str:
        return ""

    def paired(self) -> tuple[dict[str, tuple[Cell, Cell]], dict[str, Compared]]:
        pooling.check_alike(self.frames, self._arms())
        parts = self._of_each(_Test.paired)
        judged = pooling.judged({name: of_base for name, (_, of_base) in parts.items()}, self.level)
        by_label = zip(judged, *(pairs.values() for pairs, _ in parts.values()), strict=True)
        return {label: (combine([a for a, _ in of]), combine([b for _, b in of])) for label, *of in by_label}, judged

    def along(self) -> tuple[list[Cell], dict[str, Compared], Crossed]:
        values = {tuple(labels.number(value_of(arm, self.claim.knob) or "") for arm in arms) for arms in self._arms()}
        if len(values) > 1:
            raise NotTested(f"the base policies differ in their values of {self.claim.knob}")
        pooling.check_alike(self.frames, self._arms())
        parts = self._of_each(_Test.slope)
        cells = [combine(of_value) for of_value in zip(*(of_base for of_base, *_ in parts.values()), strict=True)]
        steps = pooling.judged({name: of_base for name, (_, of_base, _) in parts.items()}, self.level)
        return cells, steps, pooling.over({name: slope for name, (*_, slope) in parts.items()}).summary

    def _arms(self) -> list[list[Arm]]:
        """The arms of the claim in each base policy, in the same order."""
        if self.claim.knob:
            return [trend(self.claim, base.setting.arms) for base in self.bases]
        return [[a for pair in base._sides().values() for side in pair for a in side] for base in self.bases]

    def _of_each(self, part: Callable[[_Test], T]) -> dict[str, T]:
        """A part of the test in each base policy, by its name, which a reason not to test it begins with."""
        parts = dict[str, T]()
        for base in self.bases:
            try:
                parts[base.setting.name] = part(base)
            except NotTested as error:
                raise NotTested(f"{base.setting.name}: {error}", seeds=error.seeds) from None
        return parts

    def _repeats(self, judged: Mapping[str, Compared], seeds: set[int], planned: int) -> str:
        in_each = pooling.seeds(judged, [min(len(arm.runs) for arm in arms) for arms in self._arms()])
        many = f"{'/'.join(map(str, sorted(seeds)))} {self.REPEATS} of {in_each}"
        return ", ".join([many, *(pooling.spreads(judged, self.metric) if not self.claim.knob else [])])


def _slope(parts: Sequence[Scores]) -> Scores:
    place = np.arange(len(parts)) - (len(parts) - 1) / 2
    slope = averaged(parts, (place / (place**2).sum()).tolist())
    if slope is None:
        raise NotTested("the arms have no seed, or no problem, in common")
    return slope


def _diverged(runs: int) -> str:
    return f"{runs} run{'s' * (runs > 1)} diverged"
