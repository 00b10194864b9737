"""The stopping rule: its bounds against printed ones, its error rate and its forecast against simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.scores import student
from analysis.scores.contrast import Scores, difference
from analysis.scores.crossed import crossed
from analysis.scores.family import family
from analysis.scores.sequential import chances, levels, schedule, spent


@pytest.mark.parametrize(
    ("looks", "printed"),
    [
        (4, [4.3326, 2.9631, 2.3590, 2.0141]),  # as the R package ldbounds prints them for iuse=1, alpha 0.025 a side
        (5, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
    ],
)
def test_bounds_are_those_of_lan_and_demets(looks: int, printed: list[float]) -> None:
    bounds = [stats.norm.isf(level / 2) for level in levels(range(1, looks + 1))]
    assert bounds == pytest.approx(printed, abs=2e-4)


def test_all_of_alpha_is_spent_at_the_last_look_and_none_before_the_first() -> None:
    assert spent(1.0, 0.05) == pytest.approx(0.05)
    assert spent(0.01, 0.05) < 1e-12
    assert levels([7], 0.05) == pytest.approx([0.05])


def test_looks_are_spread_over_the_seeds_there_may_be() -> None:
    assert (schedule(3, 12), schedule(3, 4), schedule(6, 6)) == ([3, 5, 8, 10, 12], [3, 4], [6])
    with pytest.raises(ValueError, match="3 seeds or more: 2 to 9"):
        schedule(2, 9)


def layouts(rng: np.random.Generator, arms: int, S: int, *, repeats: int, seed_sd: float) -> np.ndarray:
    """[repeats, arms, S, P] scores of equal arms: the luck of a run, of a problem with an arm, of the samples."""
    P = 24
    run = rng.normal(0, seed_sd, (repeats, arms, S, 1))
    problem = rng.normal(0, 0.08, (repeats, arms, 1, P))
    return run + problem + rng.normal(0, 0.15, (repeats, arms, S, P))


@pytest.mark.parametrize("seed_sd", [0.0, 0.02, 0.1])
def test_two_equal_arms_are_told_apart_in_at_most_five_per_cent(seed_sd: float) -> None:
    repeats, seeds = 4000, schedule(3, 12)
    scores = layouts(np.random.default_rng(1), 2, seeds[-1], repeats=repeats, seed_sd=seed_sd)
    differences = scores[:, 0] - scores[:, 1]
    by_rule = np.zeros(repeats, bool)
    for count, level in zip(seeds, levels(seeds), strict=True):
        summary = crossed(differences[:, :count])
        by_rule |= student.two_sided(summary.mean / summary.error, summary.df) <= level
    assert by_rule.mean() <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / repeats)  # 99.5 % of such simulations


def test_of_few_seeds_with_much_luck_a_single_difference_errs_as_often_as_documented() -> None:
    """3 to 6 seeds, whose luck has about thirty times the variance of the mean that the problems have: above 5 %, and
    not above 8 % (docs/deciding.md), by three standard errors of the simulation."""
    repeats, seeds = 8000, schedule(3, 6)
    scores = layouts(np.random.default_rng(4), 2, seeds[-1], repeats=repeats, seed_sd=0.15)
    differences, wrong = scores[:, 0] - scores[:, 1], np.zeros(repeats, bool)
    for count, level in zip(seeds, levels(seeds), strict=True):
        summary = crossed(differences[:, :count])
        wrong |= student.two_sided(summary.mean / summary.error, summary.df) <= level
    assert 0.05 < wrong.mean() <= 0.08 + 3 * math.sqrt(0.08 * 0.92 / repeats)


@pytest.mark.slow
def test_a_family_of_equal_arms_has_a_false_verdict_in_at_most_five_per_cent() -> None:
    repeats, arms, seeds = 250, 5, schedule(3, 9)
    nominal = levels(seeds, 0.05 / (arms - 1))
    scores = layouts(np.random.default_rng(2), arms, seeds[-1], repeats=repeats, seed_sd=0.05)
    benchmark = np.zeros(scores.shape[-1], np.int64)

    def of(values: np.ndarray) -> Scores:
        return Scores(tuple(range(len(values))), tuple(range(len(benchmark))), values, benchmark)

    wrong = np.zeros(repeats, bool)
    for repeat in range(repeats):
        for count, level in zip(seeds, nominal, strict=True):
            differences = [
                difference(of(scores[repeat, arm, :count]), of(scores[repeat, 0, :count])) for arm in range(1, arms)
            ]
            judged = family([d for d in differences if d is not None], 1 - level).judged
            wrong[repeat] |= any(verdict.plain.excludes(0) for verdict in judged)
    assert wrong.mean() <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / repeats)


def test_the_forecast_is_how_often_such_a_difference_is_decided() -> None:
    rng, repeats, seeds, effect = np.random.default_rng(3), 4000, schedule(3, 12), 0.06
    nominal = levels(seeds)
    per_seed = rng.normal(effect, 0.06, (repeats, seeds[-1], 1))
    decided, shares = np.zeros(repeats, bool), []
    for count, level in zip(seeds, nominal, strict=True):
        summary = crossed(per_seed[:, :count])
        decided |= student.two_sided(summary.mean / summary.error, summary.df) <= level
        shares.append(decided.mean())
    # A pilot with exactly this effect and this spread: mean 0.06, standard deviation 0.06.
    pilot = crossed(effect + 0.06 * np.array([[-1.0], [0.0], [1.0]]))
    assert chances(pilot, math.nan, seeds, nominal) == pytest.approx(shares, abs=0.03)
    assert all(math.isnan(c) for c in chances(crossed(np.ones((1, 1))), math.nan, seeds, nominal))


@pytest.mark.parametrize("effect", [0.0, 0.09, 0.2])
def test_the_forecast_of_an_equivalence_is_how_often_one_sided_tests_or_a_difference_decide(effect: float) -> None:
    """Within ± 0.14, near its end, and beyond it."""
    rng, repeats, seeds, margin, sd = np.random.default_rng(5), 4000, schedule(4, 12), 0.14, 0.1
    nominal = levels(seeds)
    per_seed = rng.normal(effect, sd, (repeats, seeds[-1], 1))
    decided, shares = np.zeros(repeats, bool), []
    for count, level in zip(seeds, nominal, strict=True):
        summary = crossed(per_seed[:, :count])
        near = (margin - np.abs(summary.mean)) / summary.error
        decided |= student.above(near, summary.df) < level
        decided |= -near >= student.quantile(1 - level / 2, summary.df)
        shares.append(decided.mean())
    pilot = crossed(effect + sd * np.array([[-1.0], [0.0], [1.0]]))
    forecast = chances(pilot, math.nan, seeds, nominal, margin)
    assert forecast[2:] == pytest.approx(shares[2:], abs=0.05)
    assert all(chance <= share + 0.05 for chance, share in zip(forecast, shares, strict=True))


def test_power_is_known_where_scipys_function_is_not():
    """T(300, 40) exceeds 2.5 all but certainly; at 2.6 of 2.5 standard errors it does so in about 54 % of cases."""
    assert student.power(40, 2.5, 300) == pytest.approx(1)
    assert student.power(2.6, 2.5, 300) == pytest.approx(0.5398, abs=0.003)
