"""Paired differences: what is paired, what is left out, and their tests against scipy and statsmodels."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from analysis.scores.contrast import (
    LeftOut,
    Scores,
    detectable,
    difference,
    equivalence,
    equivalent_within,
    grown,
    improvement,
    needed,
)
from analysis.scores.crossed import crossed
from analysis.scores.measured import avg_values, pass_values


def scores(values: list[list[float]] | np.ndarray, seeds: tuple[int, ...] | None = None, first: int = 0) -> Scores:
    table = np.asarray(values, float)
    S, P = table.shape
    problems = tuple(f"p{i}" for i in range(first, first + P))
    return Scores(seeds or tuple(range(S)), problems, table, np.zeros(P, np.int64))


def test_the_difference_pairs_seeds_and_problems_by_name():
    arm = scores([[1, 0, 1], [1, 1, 1]], seeds=(0, 2))
    reference = scores([[0, 0, 1], [1, 1, 0]], seeds=(2, 0), first=1)  # p1, p2, p3; seed 2 first
    paired = difference(arm, reference)
    # seed 0: p1 0 − 1, p2 1 − 1; seed 2: p1 1 − 0, p2 1 − 0
    assert (paired.seeds, paired.problems, paired.values.tolist()) == ((0, 2), ("p1", "p2"), [[-1, 0], [1, 1]])
    assert paired.per_seed.tolist() == [-0.5, 1.0]
    assert paired.left_out == LeftOut((), (), 2)  # p0, which the reference lacks, and p3, which the arm lacks


def test_a_seed_or_a_problem_without_a_partner_is_left_out_and_named():
    arm = scores([[1, 0, math.nan], [1, 1, 1], [0, 0, 0]], seeds=(0, 1, 5))
    reference = scores([[0, 0, 1], [1, 1, 0]], seeds=(0, 1))
    paired = difference(arm, reference)
    assert paired.left_out == LeftOut((5,), (), 1)
    assert paired.values.tolist() == [[1, 0], [0, 0]]
    assert difference(scores([[1, 0]]), scores([[0, 1]])).left_out == LeftOut()


def test_a_seed_that_lacks_a_whole_benchmark_leaves_and_the_benchmark_stays():
    """+0.1 on one benchmark and −0.3 on the other, weighed equally: −0.1. Seed 2 of the arm has no judgements of the
    other; over its problems alone the difference would be +0.1, of another quantity."""
    two = np.array([0, 0, 0, 1, 1])
    reference = replace(scores([[0.5] * 5] * 3), benchmark=two)
    values = np.array([[0.6, 0.6, 0.6, 0.2, 0.2]] * 3)
    values[2, 3:] = math.nan
    arm = replace(scores(values), benchmark=two)
    paired = difference(arm, reference)
    assert (paired.seeds, paired.effect) == ((0, 1), pytest.approx(-0.1))
    assert paired.left_out == LeftOut((2,), (2,), 0)
    assert (arm.by_seed().seeds, arm.by_seed().values[:, 0]) == ((0, 1), pytest.approx([0.4, 0.4]))
    assert arm.summary().mean == pytest.approx(0.4)
    values[0, 3], values[1, 4] = math.nan, math.nan  # no problem of the other benchmark that all seeds have
    arm = replace(scores(values), benchmark=two)
    assert difference(arm, reference) is None
    assert difference(arm.of_problems(np.arange(3)), reference) is None
    per_run = Scores((0, 1), ("",), np.array([[0.4], [math.nan]]))  # it may be missing because of how the run went
    assert difference(per_run, replace(per_run, values=np.array([[0.5], [0.6]]))) is None


def test_without_anything_in_common_there_is_no_difference():
    assert difference(scores([[1, 0]], seeds=(0,)), scores([[1, 0]], seeds=(1,))) is None
    assert difference(scores([[1, 0]]), scores([[1, 0]], first=7)) is None
    assert difference(scores([[math.nan]]), scores([[1.0]])) is None


def test_scores_by_problem_are_compared_to_numbers_per_run_seed_by_seed():
    """The samples of the reference are lost, and only the means that it logged are left."""
    arm = scores([[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]])
    logged = Scores((0, 1, 2), ("",), np.array([[0.25], [0.75], [0.5]]))
    for paired, sign in ((difference(arm, logged), 1), (difference(logged, arm), -1)):
        assert paired.per_seed.tolist() == [sign * d for d in (0.5, 0.25, 0.0)]
        assert paired.summary.num_problems == 0
        assert paired.left_out == LeftOut()


def test_pairing_removes_what_the_arms_share():
    """Two arms that differ by 0.02 on every problem: any interval of either alone is wide, of the difference nil."""
    base = np.random.default_rng(0).random((1, 50))
    paired = difference(scores(base + 0.02), scores(base))
    assert paired.effect == pytest.approx(0.02)
    assert paired.summary.variance < 1e-20


def test_numbers_per_run_are_a_paired_t_test_over_seeds():
    a, b = np.array([1.0, 2.0, 4.0, 3.5]), np.array([0.8, 2.2, 3.1, 2.0])
    hours = [Scores((0, 1, 2, 3), ("",), x[:, None]) for x in (a, b)]
    assert difference(*hours).summary.p_value() == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_the_probability_of_improvement_is_mann_and_whitneys():
    a, b = np.array([0.5, 0.6, 0.7, 0.55]), np.array([0.55, 0.5, 0.4])
    assert improvement(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / 12)
    assert math.isnan(improvement(a[:1], b))


def test_equivalence_is_tost():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.5, 0.1, (2, 60))
    summary = difference(scores(a[None]), scores(b[None])).summary
    for margin in (0.02, 0.05):
        assert equivalence(summary, margin) == pytest.approx(ttost_paired(a, b, -margin, margin)[0])
    # The margin at which TOST is at exactly 5 % is the far end of the 90 % interval.
    assert equivalence(summary, equivalent_within(summary)) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="margin above 0"):
        equivalence(summary, 0)


def test_no_spread_is_no_evidence_of_equality():
    assert equivalence(crossed(np.zeros((1, 4)), np.zeros(4, int)), 0.01) == 1
    assert equivalence(crossed(np.array([[0.0]])), 0.01) == 1


def test_the_smallest_detectable_difference_is_that_of_power_tables():
    values = np.random.default_rng(2).normal(0, 0.3, 40)
    size = TTestPower().solve_power(nobs=40, alpha=0.05, power=0.8)
    assert detectable(crossed(values[None])) == pytest.approx(size * values.std(ddof=1), rel=1e-3)


def test_power_is_as_predicted():
    """5 seeds 2 points apart, 128 problems: the difference called detectable is seen in 80 % of 2000 repetitions."""
    rng = np.random.default_rng(3)
    S, P, R = 5, 128, 2000
    noise = rng.normal(0, 0.02, (R, S, 1)) + rng.normal(0, 0.2, (R, 1, P)) + rng.normal(0, 0.3, (R, S, P))
    variance = 0.02**2 / S + 0.2**2 / P + 0.3**2 / (S * P)
    expected = {
        "seed": 0.02**2 / S + 0.3**2 / (S * P),
        "problem": 0.2**2 / P + 0.3**2 / (S * P),
        "cell": 0.3**2 / (S * P),
    }
    true = replace(crossed(noise[0]), **{k: np.array(v) for k, v in expected.items()})
    assert float(true.variance) == pytest.approx(variance)
    drawn = crossed(noise + detectable(true))
    p = [
        replace(drawn, mean=m, seed=s, problem=q, cell=c, df_problem=d).p_value()
        for m, s, q, c, d in zip(drawn.mean, drawn.seed, drawn.problem, drawn.cell, drawn.df_problem, strict=True)
    ]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.8, abs=0.03)


def test_needed_seeds_problems_and_samples_are_the_first_that_suffice():
    rng = np.random.default_rng(4)
    values = rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.03, (1, 200)) + rng.normal(0, 0.15, (3, 200))
    values += 0.01 - values.mean()
    summary = crossed(values, np.zeros(200, int))
    sampling = float(summary.cell) * 0.6
    wanted = needed(summary, sampling, 8)
    effect = abs(float(summary.mean))
    assert wanted.seeds is not None
    assert detectable(grown(summary, sampling, seeds=wanted.seeds / 3)) <= effect
    assert detectable(grown(summary, sampling, seeds=(wanted.seeds - 1) / 3)) > effect
    assert wanted.problems is None  # the seeds alone leave more than the difference open, whatever the problems
    assert wanted.samples is None
    quiet = replace(summary, seed=summary.cell)  # seeds alike: then problems, and samples, can decide
    assert needed(quiet, sampling, 8).problems is not None
    assert needed(replace(summary, mean=np.array(0.0)), sampling, 8).seeds is None


def test_seeds_cannot_make_up_for_too_few_problems():
    """Between problems 10 points over 50 of them: 1.4 points stay open however many seeds there are."""
    values = np.random.default_rng(8).normal(0, 0.1, (1, 50)) + np.random.default_rng(9).normal(0, 0.01, (3, 50))
    values += 0.01 - values.mean()
    assert needed(crossed(values, np.zeros(50, int)), 0.0, 8).seeds is None


def test_nothing_more_is_needed_where_it_is_decided():
    values = np.random.default_rng(5).normal(0.5, 0.1, (4, 30))
    assert needed(crossed(values, np.zeros(30, int)), math.nan, 0).seeds == 4


def test_more_of_a_kind_shrinks_its_own_part_alone():
    """Components by hand: cell 4 (of which sampling 1), seed 6 = 2 + 4, problem 9 = 5 + 4."""
    at = crossed(np.random.default_rng(6).random((2, 10)), np.zeros(10, int))
    at = replace(at, seed=np.array(6.0), problem=np.array(9.0), cell=np.array(4.0))
    twice = {kind: grown(at, 1.0, **{kind: 2.0}) for kind in ("seeds", "problems", "samples")}
    assert [float(x) for x in (twice["seeds"].seed, twice["seeds"].problem, twice["seeds"].cell)] == [3, 7, 2]
    assert [float(x) for x in (twice["problems"].seed, twice["problems"].problem, twice["problems"].cell)] == [
        4,
        4.5,
        2,
    ]
    assert [float(x) for x in (twice["samples"].seed, twice["samples"].problem, twice["samples"].cell)] == [
        5.5,
        8.5,
        3.5,
    ]
    assert (twice["seeds"].num_seeds, twice["seeds"].df_seed, twice["problems"].num_problems) == (4, 3, 20)


def test_with_one_seed_no_number_of_seeds_is_advised():
    values = np.random.default_rng(7).normal(0.02, 0.2, (1, 100))
    wanted = needed(crossed(values, np.zeros(100, int)), 1e-5, 8)
    assert wanted.seeds is None
    assert wanted.problems > 100


QUICKSTART = Path(__file__).parents[1] / "data" / "quickstart_correct_of_8.csv"


@pytest.mark.parametrize(
    ("arm", "metric", "effect", "interval"),
    [
        ("lad_hd", "pass", 6.6, (3.5, 9.6)),
        ("lad_hd", "avg", -2.3, (-4.2, -0.5)),
        ("lad_js", "pass", 4.1, (1.2, 6.8)),
        ("lad_js", "avg", -2.0, (-3.8, -0.2)),
    ],
)
def test_the_quickstarts_own_runs(arm: str, metric: str, effect: float, interval: tuple[float, float]):
    """Correct answers of 8 on the 512 mazes of one seed: what pairing finds where ± 4 points of each arm hide it.

    Expected: a percentile bootstrap over problems, of 2000 draws: its ends are known to ± 0.15, printed to 0.1."""
    correct = pd.read_csv(QUICKSTART)
    n = np.full(len(correct), 8)
    read = {"avg": avg_values, "pass": lambda n, c: pass_values(n, c, 8)}[metric]
    lad, grpo = (scores(read(n, correct[name].to_numpy())[None]) for name in (arm, "grpo"))
    paired = difference(lad, grpo)
    low, high = paired.summary.interval().low, paired.summary.interval().high
    assert 100 * paired.effect == pytest.approx(effect, abs=0.05)
    assert (100 * low, 100 * high) == pytest.approx(interval, abs=0.2)
    alone = lad.summary().interval().half + grpo.summary().interval().half
    assert alone > 2 * paired.summary.interval().half  # unpaired they would overlap
