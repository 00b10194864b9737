"""Repeated looks at a growing sweep with at most 5 % wrong decisions in all. Numbers in, numbers out.

A test at 5 % after each wave of seeds would find a difference between equal arms in one case of seven. A stopping rule
divides the 5 % among the looks before the first of them: this one with the spending function of O'Brien and Fleming's
type (Lan and DeMets 1983), which spends little early and keeps nearly all for the last look.

Each look is a test at its own nominal level, applied to the p-value of Student's t (the significance level approach,
Jennison and Turnbull 2000, section 4.4). The levels are those of a Brownian motion, whose information is the number of
seeds. The part of the variance that the choice of the test problems causes does not shrink with more seeds, so the
looks are more alike than assumed, and the rule errs less often. It errs more often where a single difference of few
seeds has to show its own spread: Satterthwaite's degrees of freedom are then too many, and 3 to 6 seeds err in up to
8 %. Such rules have `calibrated` levels. Several differences share the 5 % evenly (Bonferroni), each with a rule of its
own, so that one may stop while the others go on; their spread is pooled, and they keep to it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.scores import student
from analysis.scores.claim import Outcome
from analysis.scores.contrast import grown
from analysis.scores.crossed import LEAST_SEEDS, LEVEL, ROUNDING, Crossed, threshold

Array = NDArray[np.float64]

LOOKS = 5  # more looks gain almost nothing
FUTILE = 0.05  # a question with a smaller chance to be decided at the last look gets no more seeds
GRID = 1001  # points of the numerical integral
FAR = 12.0  # standard deviations, the upper end of the search for a bound
DRAWS = 100_000  # of a sweep: an error of 5 % is known to ± 0.1 %
SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)  # variance that problems cause, over that of the first look's seeds
SEED = 20260220  # any constant: the same rule has the same levels
DROPPED = (Outcome.BELOW, Outcome.ABOVE)  # of an arm against the best one; above where less is better
NORMAL = math.inf  # degrees of freedom at which Student's t is the normal distribution


def schedule(first: int, last: int) -> list[int]:
    """Number of seeds at each look, evenly from the first to the last. Raises ValueError if no look is possible."""
    if first < LEAST_SEEDS or last < first:
        raise ValueError(f"a stopping rule looks at {LEAST_SEEDS} seeds or more: {first} to {last} are none")
    return sorted({round(s) for s in np.linspace(first, last, min(LOOKS, last - first + 1))})


def spent(fraction: float, alpha: float) -> float:
    """The part of alpha (two-sided) that is spent at this fraction of the information."""
    return float(2 * student.two_sided(-student.quantile(alpha / 4, NORMAL) / math.sqrt(fraction), NORMAL))


def levels(seeds: Sequence[int], alpha: float = 1 - LEVEL) -> list[float]:
    """The nominal two-sided level of each look, at these numbers of seeds, of which the last is the maximum.

    By recursive integration of the density of the paths that have crossed no bound (Armitage, McPherson and Rowe 1969).
    """
    fractions = [s / seeds[-1] for s in seeds]
    bounds: list[float] = []
    paths, density = np.zeros(1), np.ones(1)  # z-values of the paths that go on, and the mass at each
    before, spent_before = 0.0, 0.0
    for fraction in fractions:
        share, spent_before = spent(fraction, alpha) - spent_before, spent(fraction, alpha)
        keep = math.sqrt(before / fraction)
        spread = math.sqrt(1 - before / fraction)
        bound = threshold(partial(_crosses_at_most, share, density, keep * paths, spread), FAR)
        z = np.linspace(-bound, bound, GRID)
        weight = np.full(GRID, z[1] - z[0])
        weight[[0, -1]] /= 2
        steps = (z[:, None] - keep * paths[None, :]) / spread
        density = weight * (np.exp(-(steps**2) / 2) / (math.sqrt(2 * math.pi) * spread) @ density)
        paths, before = z, fraction
        bounds.append(bound)
    return [float(student.two_sided(bound, NORMAL)) for bound in bounds]


def _crosses_at_most(share: float, density: Array, means: Array, spread: float, bound: float) -> bool:
    """Whether paths that go on from these means have at most this chance to be beyond ± bound. density: their mass."""
    beyond = student.above((bound - means) / spread, NORMAL) + student.above((bound + means) / spread, NORMAL)
    return float(density @ beyond) <= share


def calibrated(seeds: Sequence[int], alpha: float = 1 - LEVEL) -> list[float]:
    """The `levels`, all lowered by one factor so that the tests of `crossed` err in at most alpha in all, whatever the
    share of the variance is that the choice of many problems causes. By simulation with fixed draws."""
    rng, nominal = np.random.default_rng(SEED), levels(seeds, alpha)
    total, squares, of_problems = np.zeros(DRAWS), np.zeros(DRAWS), rng.normal(0, 1, DRAWS)
    smallest = np.full((len(SHARES), DRAWS), np.inf)  # p-value over level, of the look where it is smallest
    for count, more, level in zip(seeds, np.diff([0, *seeds]), nominal, strict=True):
        added = rng.normal(0, math.sqrt(more), DRAWS)  # the sum of the luck of `more` seeds, then of its squares
        total += added
        squares += added**2 / more + (rng.chisquare(more - 1, DRAWS) if more > 1 else 0.0)
        by_seeds = (squares - total**2 / count) / (count - 1) / count  # the variance of the mean that they cause
        for share, least in zip(SHARES, smallest, strict=True):
            variance = by_seeds + share / seeds[0]
            t = (total / count + math.sqrt(share / seeds[0]) * of_problems) / np.sqrt(variance)
            df = (count - 1) * (variance / by_seeds) ** 2  # Satterthwaite's
            np.minimum(least, student.two_sided(t, df) / level, out=least)
    factor = min(1.0, float(np.quantile(smallest, alpha, axis=1).min()))
    return [factor * level for level in nominal]


def chances(
    summary: Crossed, sampling: float, seeds: Sequence[int], nominal: Sequence[float], margin: float | None = None
) -> list[float]:
    """The chance that a difference is decided by each look if it and its components of variance are as measured so far.

    It is the chance of the look itself, which for these rules is nearly that of any look up to it; NaN without a
    spread. margin: of an equivalence, which two one-sided tests, or a difference beyond the margin, decide; None: the
    difference is tested against 0.
    """
    if summary.num_seeds < 2 or summary.alike:
        return [math.nan] * len(seeds)
    by_look: list[float] = []
    for count, level in zip(seeds, nominal, strict=True):
        then = grown(summary, sampling, seeds=count / summary.num_seeds)
        mean, error, df = abs(float(then.mean)), float(then.error), float(then.df)
        critical = then.interval(1 - level).half / error
        if margin is None:
            power = student.power(mean / error, critical, df)
        else:
            one_sided = then.interval(1 - 2 * level).half / error
            within = sum(student.power((margin + side) / error, one_sided, df) for side in (mean, -mean)) - 1
            power = max(0.0, within) + student.power((mean - margin) / error, critical, df)
        by_look.append(max([power, *by_look[-1:]]))
    return by_look


def chance_at_last(
    summary: Crossed, sampling: float, seeds: int, level: float, margin: float | None = None, *, lead: float = 0.0
) -> float:
    """The chance that a difference is decided at the last look, given the seeds so far; NaN without a spread.

    What the further seeds will show is drawn from what these have shown (predictive power, Spiegelhalter et al. 1986,
    with a flat prior): the mean of all seeds lies about the present one with the variance that the further seeds will
    take from it, and Student's t has the degrees of freedom of the seeds so far. margin: as in `chances`. lead: what
    counts as decided, too, is that the difference is below this.
    """
    if summary.num_seeds < 2 or summary.alike:
        return math.nan
    last = grown(summary, sampling, seeds=seeds / summary.num_seeds)
    mean, df = float(summary.mean), float(summary.df)
    spread = math.sqrt(max(float(summary.variance - last.variance), ROUNDING))

    def beyond(bound: float) -> float:
        above, below = (bound - mean) / spread, (bound + mean - lead) / spread
        return float(student.above(above, df) + student.above(below, df))

    different = last.interval(1 - level).half
    if margin is None:
        return beyond(different)
    within = margin - last.interval(1 - 2 * level).half
    return beyond(margin + different) + (1 - beyond(within) if within > 0 else 0.0)


def given_up(rule: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    """Why an undecided question of a look gets no more seeds; "" if it does, or is decided. Rules of earlier versions
    give up none."""
    chance = question.get("chance", 1.0)
    if question["outcome"] != Outcome.UNDECIDED or chance >= rule.get("futile", 0.0):
        return ""
    return f"given up: all of the budget would decide it with a chance of {100 * chance:.1f} %"


def open_questions(rule: Mapping[str, Any], look: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The questions that a look left open, whose arms get more seeds. Where the best arm is sought, all arms of a
    setting that are left get them while one of them is open, as which of them leads may change."""
    is_open = [q for q in look["questions"] if q["outcome"] == Outcome.UNDECIDED and not given_up(rule, q)]
    if "best" not in rule:
        return is_open
    left = [q for q in look["questions"] if q["outcome"] not in DROPPED]
    leaders = {q["groups"][1] for q in is_open if not q["close"]}  # one in each setting
    return [q for q in left if q["groups"][1] in leaders]


def dropped(looks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Where the best arm is sought, the arms that are not, by group id, and the number of the look that showed it."""
    numbered = [(number, q) for number, look in enumerate(looks, start=1) for q in look["questions"]]
    return {q["groups"][0]: number for number, q in numbered if q["outcome"] in DROPPED}
