"""The stopping rule: its bounds against printed ones, its error rate and its forecast against simulation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from analysis import decide
from analysis.scores import student
from analysis.scores.cell import Cell
from analysis.scores.comparison import against_best, compare, study_level
from analysis.scores.contrast import Scores, difference
from analysis.scores.crossed import crossed
from analysis.scores.family import family
from analysis.scores.sequential import FUTILE, calibrated, chance_at_last, chances, given_up, levels, schedule, spent


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


def layouts(
    rng: np.random.Generator, arms: int, S: int, *, repeats: int, seed_sd: float, problems: int = 24
) -> np.ndarray:
    """[repeats, arms, S, P] scores of equal arms: the luck of a run, of a problem with an arm, of the samples."""
    run = rng.normal(0, seed_sd, (repeats, arms, S, 1))
    problem = rng.normal(0, 0.08, (repeats, arms, 1, problems))
    return run + problem + rng.normal(0, 0.15, (repeats, arms, S, problems))


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


@pytest.mark.parametrize(("problems", "seed_sd", "most"), [(24, 0.15, 6), (100, 0.06, 6), (100, 0.06, 3), (24, 0.3, 9)])
def test_a_single_difference_of_few_seeds_errs_in_five_per_cent_at_calibrated_levels(
    problems: int, seed_sd: float, most: int
) -> None:
    """Seeds, whose luck outweighs that of the problems by far or somewhat: the levels of the motion err in 5 to 8 %."""
    repeats, seeds = 4000, schedule(3, most)
    scores = layouts(np.random.default_rng(4), 2, seeds[-1], repeats=repeats, seed_sd=seed_sd, problems=problems)
    differences = scores[:, 0] - scores[:, 1]
    wrong = {calibrated: np.zeros(repeats, bool), levels: np.zeros(repeats, bool)}
    for rule, errs in wrong.items():
        for count, level in zip(seeds, rule(seeds), strict=True):
            summary = crossed(differences[:, :count])
            errs |= student.two_sided(summary.mean / summary.error, summary.df) <= level
    assert wrong[calibrated].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)
    assert wrong[levels].mean() > 0.05


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


def test_the_chance_at_the_last_look_is_how_often_it_decides() -> None:
    """Effects of all sizes are drawn, so that a flat prior is right; eight of twelve seeds are seen."""
    rng, repeats, level = np.random.default_rng(6), 3000, 0.045
    per_seed = rng.uniform(-0.3, 0.3, (repeats, 1, 1)) + rng.normal(0, 0.1, (repeats, 12, 1))
    whole = crossed(per_seed)
    decided = student.two_sided(whole.mean / whole.error, whole.df) <= level
    predicted = np.array([chance_at_last(crossed(seen), math.nan, 12, level) for seen in per_seed[:, :8]])
    assert predicted.mean() == pytest.approx(decided.mean(), abs=0.02)
    middling = (predicted > 0.2) & (predicted < 0.8)
    assert predicted[middling].mean() == pytest.approx(decided[middling].mean(), abs=0.1)
    hopeless = predicted < FUTILE
    assert hopeless.sum() > 100
    assert decided[hopeless].mean() < 0.05


@pytest.mark.parametrize(("effect", "saved", "lost"), [(0.0, 0.2, 0.01), (0.09, 0.0, 0.02)])
def test_giving_up_saves_seeds_of_equal_arms_and_costs_little_power(effect: float, saved: float, lost: float) -> None:
    """No effect: a fifth of the seeds or more is saved. An effect that twelve seeds decide in three of four cases: two
    points of power at most are lost. Whatever is given up, nothing is decided that the rule would not decide."""
    rng, repeats, seeds = np.random.default_rng(7), 400, schedule(3, 12)
    nominal = levels(seeds)
    per_seed = rng.normal(effect, 0.1, (repeats, 12, 1))
    by_rule, with_futility, used = np.zeros(repeats, bool), np.zeros(repeats, bool), np.full(repeats, 12.0)
    for i, values in enumerate(per_seed):
        goes_on = True
        for count, level in zip(seeds, nominal, strict=True):
            summary = crossed(values[:count])
            decides = bool(student.two_sided(summary.mean / summary.error, summary.df) <= level)
            with_futility[i] |= decides and goes_on
            by_rule[i] |= decides
            if goes_on and (decides or chance_at_last(summary, math.nan, 12, nominal[-1]) < FUTILE):
                goes_on, used[i] = False, count
            if by_rule[i]:
                break
    assert not (with_futility & ~by_rule).any()
    assert by_rule.mean() - with_futility.mean() <= lost
    assert 1 - used.mean() / 12 >= saved


def test_the_chance_of_an_equivalence_and_of_what_has_no_spread() -> None:
    """Differences of 0.00 ± 0.01 lie within ± 0.1 for sure, and differ from 0 hardly ever."""
    near = crossed(0.01 * np.array([[-1.0], [0.0], [1.0], [0.5], [-0.5]]))
    assert chance_at_last(near, math.nan, 12, 0.05, margin=0.1) > 0.99
    assert chance_at_last(near, math.nan, 12, 0.05) < 0.3
    assert chance_at_last(near, math.nan, 12, 0.05, margin=0.001) < 0.3  # no number of these seeds is so exact
    assert math.isnan(chance_at_last(crossed(np.ones((3, 1))), math.nan, 12, 0.05))


def test_only_an_undecided_question_without_a_chance_is_given_up() -> None:
    rule = {"futile": 0.05}
    assert given_up(rule, {"outcome": "undecided", "chance": 0.012}).endswith("a chance of 1.2 %")
    for question in (
        {"outcome": "undecided", "chance": 0.05},
        {"outcome": "undecided"},
        {"outcome": "above", "chance": 0},
    ):
        assert given_up(rule, question) == ""
    assert given_up({}, {"outcome": "undecided", "chance": 0.0}) == ""


def test_the_best_of_ten_arms_is_dropped_in_at_most_five_per_cent_of_sweeps() -> None:
    """Means of seeds with a known spread, by a normal test to one side: an arm is dropped if it is decidedly below the
    one that leads. The best is better by 0, 1, 2 or 3 standard deviations of a seed; the others are equal."""
    rng, sweeps, arms = np.random.default_rng(8), 4000, 10
    rule = decide.rule(3, 12, arms - 1, best=0.0)
    luck = rng.normal(0, 1, (sweeps, arms, 12))
    for gain, most_runs in {0.0: 1.0, 1.0: 1.0, 2.0: 0.85, 3.0: 0.7}.items():
        left, runs = np.ones((sweeps, arms), bool), np.zeros(sweeps)
        for count, before, level in zip(rule["seeds"], [0, *rule["seeds"]], rule["levels"], strict=False):
            runs += (count - before) * np.where(left.sum(1) > 1, left.sum(1), 0)
            means = luck[:, :, :count].mean(2) + gain * (np.arange(arms) == 0)
            lead = np.where(left, means, -np.inf).max(1, keepdims=True)
            left &= (lead - means) / math.sqrt(2 / count) < stats.norm.isf(level / 2)
        assert 1 - left[:, 0].mean() <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / sweeps), gain
        assert runs.mean() <= most_runs * arms * 12, gain


@pytest.mark.slow
def test_the_best_arm_is_dropped_in_at_most_five_per_cent_of_sweeps_of_seeds_and_problems() -> None:
    """Five arms, the best by 0 and by 2 standard deviations of a seed, which then takes a sixth of the runs less."""
    arms, sweeps, problems, sd = 5, 80, 64, 0.05
    rng, rule = np.random.default_rng(9), decide.rule(3, 12, arms - 1, best=0.0)
    for gain in (0.0, 2.0):
        wrong, runs = 0, 0
        for _ in range(sweeps):
            rate = (
                rng.beta(1, 1, problems) + rng.normal(0, sd, (arms, 12, 1)) + rng.normal(0, 0.05, (arms, 1, problems))
            )
            rate[0] += gain * sd
            values, seeds = rng.binomial(8, rate.clip(0, 1)) / 8, dict[int, int](dict.fromkeys(range(arms), 0))
            left = [*seeds]
            for count, level in zip(rule["seeds"], rule["levels"], strict=True):
                seeds |= dict.fromkeys(left, count)
                cells = {arm: cell_of(values[arm, :number]) for arm, number in seeds.items()}
                best, compared = against_best(cells, left, 1, 1 - level)
                left = [arm for arm in left if arm == best or compared[arm].judged.plain.high >= 0]
                if len(left) == 1:
                    break
            wrong, runs = wrong + (0 not in left), runs + sum(seeds.values())
        assert wrong <= stats.binom.isf(0.005, sweeps, 0.05), gain
        assert runs <= (1 if gain == 0 else 5 / 6) * sweeps * arms * 12


def cell_of(values: np.ndarray) -> Cell:
    S, P = values.shape
    return Cell.of(Scores(tuple(range(S)), tuple(range(P)), values, np.zeros(P, np.int64)), S)


def test_the_best_arm_is_that_of_the_problems_that_all_answered() -> None:
    """Where one arm lacks the hard problems its mean is higher, and on those of both the other is better by 0.2."""
    noise = 0.02 * np.random.default_rng(1).standard_normal((5, 40))
    easy = np.where(np.arange(40) < 20, 0.6, np.nan)
    both = np.where(np.arange(40) < 20, 0.8, 0.1)
    cells = {"lacks": cell_of(easy + noise), "better": cell_of(both - noise)}
    assert cells["lacks"].mean > cells["better"].mean
    best, compared = against_best(cells, ["lacks", "better"], 1, 0.95)
    assert best == "better"
    assert compared["lacks"].effect == pytest.approx(-0.2, abs=0.02)
    # Among five arms the family's intervals are wider than that of one difference, by which arms are dropped.
    rng, only_alone = np.random.default_rng(2), 0
    for spread in np.linspace(0.02, 0.25, 40):
        values = {"lacks": easy, "better": both, **{f"low{i}": np.full(40, 0.05) for i in range(3)}}
        cells = {
            key: cell_of(base + spread * rng.standard_normal((3, 1)) + 0.02 * rng.standard_normal((3, 40)))
            for key, base in values.items()
        }
        others = {key: cell for key, cell in cells.items() if key != "lacks"}
        ahead = compare(others, dict.fromkeys(others, cells["lacks"]), 0.95)["better"]
        only_alone += ahead.judged.plain.low > 0 and not ahead.decided
        best, compared = against_best(cells, [*cells], 1, 0.95)
        assert not any(c.judged.plain.low > 0 for c in compared.values()), (best, spread)
    assert only_alone > 3


def test_intervals_of_a_search_for_the_best_arm_share_the_looks_to_both_sides() -> None:
    level = 0.06  # of a look, to two sides; the tests of the best arm are to one of them
    rule = {"parts": 1, "looks": [{"level": level}]}
    frames = SimpleNamespace(alpha=0.05, stopping_rule={**rule, "best": 0.0})
    assert study_level(frames) == pytest.approx(1 - level / 2)  # type: ignore[arg-type]
