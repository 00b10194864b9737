"""How often the runs of an arm diverge, against its reference: exact tests, which hold for a handful of runs. And
differences in which these runs count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from analysis.frames.frames import Frames, remembered
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, base_cell, cell_at, combine, last_points
from analysis.scores.comparable import by_setting
from analysis.scores.comparison import compare
from analysis.scores.measured import at, mean_of
from analysis.scores.metric import Metric
from analysis.scores.selection import default_reference
from rlvr.ledger.cause import State

ALPHA = 0.05  # of all arms of a setting together


@dataclass(frozen=True)
class Failures:
    """Runs that diverged, of those that ended by themselves (finished or diverged), of an arm and of its reference.

    p: two-sided, of Fisher's exact test; adjusted: for all arms of the setting (Holm).
    """

    arm: Arm
    reference: Arm
    diverged: tuple[int, int]
    ended: tuple[int, int]
    p: float
    adjusted: float

    @property
    def sign(self) -> int:
        """1 if the arm decidedly diverges more often than its reference, −1 if less often, else 0."""
        (a, b), (n, m) = self.diverged, self.ended
        return 0 if self.adjusted > ALPHA else (a * m > b * n) - (a * m < b * n)


def failures(frames: Frames) -> list[Failures]:
    """Arms of which runs diverged, or that decidedly diverge less often than their reference; by setting, all of whose
    arms count as tests."""
    found: list[Failures] = []
    for setting in by_setting(frames):
        trained = [arm for arm in setting.arms if not arm.control]
        references = default_reference(trained, frames.baseline)
        pairs = [(arm, references[arm.group_id]) for arm in trained if arm.group_id in references]
        counts = {arm.group_id: _counts(arm) for arm in trained}
        tests = {arm.group_id: fisher(*counts[arm.group_id], *counts[of.group_id]) for arm, of in pairs}
        adjusted = holm(tests)
        for arm, reference in pairs:
            (a, n), (b, m) = counts[arm.group_id], counts[reference.group_id]
            of_arm = Failures(arm, reference, (a, b), (n, m), tests[arm.group_id], adjusted[arm.group_id])
            found += [of_arm] if n and m and (a or of_arm.sign) else []
    return found


def _counts(arm: Arm) -> tuple[int, int]:
    """(runs that diverged, these and the finished ones)"""
    states = [run.state for run in arm.runs]
    diverged = states.count(State.DIVERGED)
    return diverged, diverged + states.count(State.FINISHED)


def fisher(a: int, n: int, b: int, m: int) -> float:
    """Two-sided p of a in n against b in m, with all margins fixed: the probability of tables that are no more probable
    than this one (Fisher's exact test)."""
    ways = [comb(n, k) * comb(m, a + b - k) for k in range(max(0, a + b - m), min(n, a + b) + 1)]
    here = comb(n, a) * comb(m, b)
    return sum(w for w in ways if w <= here) / comb(n + m, a + b)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """The p-values adjusted for all of them (Holm 1979): the i-th smallest of m times m − i, never below a smaller
    one's."""
    adjusted: dict[str, float] = {}
    for i, key in enumerate(sorted(ps, key=lambda key: ps[key])):
        adjusted[key] = min(1.0, max((len(ps) - i) * ps[key], *adjusted.values(), 0.0))
    return adjusted


def intention_to_treat(
    frames: Frames, arms: Sequence[Arm], against: Sequence[Arm], metric: Metric, sources: tuple[str, ...], level: float
) -> str:
    """The difference in a share of problems in which the diverged runs of both sides count, as the base policy and as
    0, the least that is possible, in words; "" if one of them was not evaluated before its first step. against: nothing
    for the base policy of `arms`."""
    parts: list[str] = []
    for base in (True, False) if metric.per_problem and metric.scale > 1 else ():
        own, other = (combine([_treated(frames, a, metric, sources, base) for a in side]) for side in (arms, against))
        other = other if against else base_cell(frames, arms, metric, sources)
        of_both = compare({"": own}, {"": other}, level).values()
        parts += [metric.difference(compared.effect, compared.judged.plain) for compared in of_both]
    return f"with diverged runs as the base policy {parts[0]}, as 0 {parts[1]}" if len(parts) == 2 else ""


@remembered
def _treated(frames: Frames, arm: Arm, metric: Metric, sources: tuple[str, ...], base: bool) -> Cell:
    """The score of an arm with its diverged runs: at step 0 if `base`, else 0 of every problem."""
    diverged = {run.run_id: run.seed for run in arm.runs if run.state == State.DIVERGED}
    points = last_points(frames, arm) | {i: at(0) for i in diverged if 0 in frames.digest.steps(i)}
    treated = cell_at(frames, metric, sources, points, planned=len(arm.runs), reasons=[])
    if treated.scores is None or not diverged.keys() <= points.keys():
        return Cell()
    zero = np.isin(treated.scores.seeds, [] if base else list(diverged.values()))
    measured = replace(treated.scores, values=np.where(zero[:, None], 0 * treated.scores.values, treated.scores.values))
    return replace(treated, scores=measured, mean=mean_of(measured))
