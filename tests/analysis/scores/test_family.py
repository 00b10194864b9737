"""Families of differences: critical values against the multivariate t, false positives of an A/A sweep simulated."""

import numpy as np
import pytest
from scipy import stats

from analysis.scores import family as rooms
from analysis.scores.contrast import Difference, Scores, difference
from analysis.scores.family import family

P, SAMPLES = 256, 8


def arms(rng: np.random.Generator, spreads: list[float], S: int, distance: float = 0.0) -> list[Scores]:
    """avg@8 of arms of equal ability; spreads: standard deviation of each one's luck of training, as a share."""
    base = rng.beta(0.6, 0.6, P)
    of_arms = []
    for spread in spreads:
        rate = base + rng.normal(0, distance, P) + rng.normal(0, spread, (S, 1))
        values = rng.binomial(SAMPLES, np.clip(rate, 0, 1)) / SAMPLES
        of_arms.append(Scores(tuple(range(S)), tuple(range(P)), values, np.zeros(P, np.int64)))
    return of_arms


def against_first(of_arms: list[Scores]) -> list[Difference]:
    return [d for arm in of_arms[1:] if (d := difference(arm, of_arms[0])) is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("S", "spread"), [(1, 0.0), (3, 0.01), (3, 0.03), (5, 0.03), (8, 0.03)])
def test_ten_equal_arms_rarely_give_any_verdict(S: int, spread: float):
    """An A/A sweep: any of nine differences called in at most 5 %. 300 sweeps know that to ± 2.5 (two errors)."""
    rng = np.random.default_rng([S, round(1000 * spread)])
    false = 0
    for _ in range(300):
        judged = family(against_first(arms(rng, [spread] * 10, S, distance=0.05 if S > 1 else 0.1))).judged
        false += any(verdict.simultaneous.excludes(0) for verdict in judged)
    assert false / 300 <= 0.05 + 0.025


@pytest.mark.slow
def test_an_arm_with_a_large_spread_does_not_get_the_pooled_degrees_of_freedom():
    """Of six arms one, whose seeds are three times as far apart. 1000 sweeps know its 5 % to ± 1.4 (two errors)."""
    rng = np.random.default_rng(3)
    false = 0
    for _ in range(1000):
        restless = family(against_first(arms(rng, [0.02] * 5 + [0.06], 5))).judged[-1]
        false += restless.plain.excludes(0)
        assert restless.simultaneous.half >= restless.plain.half
    assert false / 1000 <= 0.05 + 0.014


@pytest.mark.slow
def test_a_reference_with_a_large_spread_rarely_gives_verdicts_on_its_arms():
    """The reference's seeds 6 points apart, all others' 1: the pooled spread must not hide it."""
    rng = np.random.default_rng(2)
    false = 0
    for _ in range(300):
        judged = family(against_first(arms(rng, [0.06, *[0.01] * 9], 5, distance=0.05))).judged
        false += any(verdict.simultaneous.excludes(0) for verdict in judged)
    assert false / 300 <= 0.10


@pytest.mark.parametrize(("K", "df"), [(3, 8.0), (9, 18.0), (9, 511.0)])
def test_critical_values_are_those_of_the_multivariate_t(K: int, df: float):
    correlation = np.full((K, K), 0.5) + 0.5 * np.eye(K)
    critical = np.quantile(rooms._largest_t(correlation, df), 0.95)
    inside = stats.multivariate_t(shape=correlation, df=df, seed=0).cdf(
        np.full(K, critical), lower_limit=np.full(K, -critical)
    )
    assert inside == pytest.approx(0.95, abs=0.004)


def test_draws_do_not_depend_on_which_eigenvectors_a_machine_finds(monkeypatch: pytest.MonkeyPatch):
    """Those of equal eigenvalues may be turned: [[1, ½, ½], ...] has the eigenvalues ½, ½, 2."""
    correlation = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    before = rooms._largest_t(correlation, 8.0)
    values, vectors = np.linalg.eigh(correlation)
    turn = np.eye(3)
    turn[:2, :2] = [[0.6, -0.8], [0.8, 0.6]]
    monkeypatch.setattr(np.linalg, "eigh", lambda _: (values, vectors @ turn))
    np.testing.assert_allclose(rooms._largest_t(correlation, 8.0), before, rtol=1e-12)


def test_the_pooled_spread_by_hand():
    """±0.1 and ∓0.1 beside a reference that does not move: variances of 0.02 each. Of seeds × arms, (0, 0),
    (0.1, −0.1), (−0.1, 0.1), twice the residual mean square is 2·4·0.01/2 = 0.04. A mean of two seeds has half of it.
    """
    rates, moved = np.linspace(0.2, 0.8, 5), np.array([[0.1], [-0.1]])
    of_arms = [Scores((0, 1), tuple(range(5)), rates + sign * moved, np.zeros(5, np.int64)) for sign in (0, 1, -1)]
    judged = family(against_first(of_arms)).judged
    assert [verdict.summary.seed for verdict in judged] == pytest.approx([0.02, 0.02])
    assert [verdict.summary.df_seed for verdict in judged] == [2, 2]  # (2 − 1)·2


def test_the_pooled_spread_of_arms_that_lack_other_seeds_by_hand():
    """One arm is 0.1 and −0.1 from the reference at seeds 0 and 1, the other at seeds 1 and 2: variances of 0.02 each.
    Least squares of the table ((0, 0, 0), (0.1, −0.1, ·), (·, 0.1, −0.1)) without arms (0, a, −a) and seeds (s, 0, −s),
    by symmetry: 2·(s² + (0.1 − a − s)² + (−0.1 − a)²) is least at a = −1/30 and s = 1/15, with 2·3/225 = 2/75. Over two
    degrees of freedom, and doubled, that is 2/75; a mean of two seeds has half of it."""
    rates = np.linspace(0.2, 0.8, 5)

    def arm(seeds: tuple[int, ...], *moved: float) -> Scores:
        return Scores(seeds, tuple(range(5)), rates + np.array(moved)[:, None], np.zeros(5, np.int64))

    judged = family(against_first([arm((0, 1, 2), 0, 0, 0), arm((0, 1), 0.1, -0.1), arm((1, 2), 0.1, -0.1)])).judged
    assert [verdict.summary.seed for verdict in judged] == pytest.approx([1 / 75, 1 / 75])
    assert [verdict.summary.df_seed for verdict in judged] == [2, 2]


def test_the_pooled_spread_of_a_thousand_seeds_is_that_of_the_two_way_table():
    """Balanced: what is left of a cell without the means of its row and its column, and with that of all."""
    moved = np.random.default_rng(0).normal(0, 0.01, (3, 1000))
    of_arms = [Scores(tuple(range(1000)), (0,), 0.5 + row[:, None], np.zeros(1, np.int64)) for row in moved]
    table = moved - moved[0]
    left = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
    pooled = 2 * float((left**2).sum()) / (2 * 999)
    judged = family(against_first(of_arms)).judged
    assert min(verdict.summary.seed for verdict in judged) == pytest.approx(pooled / 1000, rel=1e-11, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize(("K", "S"), [(9, 4), (9, 5), (4, 4)])
def test_arms_that_each_lack_another_seed_rarely_give_a_verdict(K: int, S: int):
    """As where other runs have diverged in each. No seed is common to nine arms, and with each judged by its own spread
    10 to 19 % of such sweeps have a false verdict. 300 sweeps know 5 % to ± 2.5 (two errors)."""
    rng = np.random.default_rng([K, S])
    false = 0
    for _ in range(300):
        first, *others = arms(rng, [0.03] * (K + 1), S, distance=0.05)
        with_gaps = [arm.of_seeds(tuple(s for s in range(S) if s != k % S)) for k, arm in enumerate(others)]
        false += any(verdict.simultaneous.excludes(0) for verdict in family(against_first([first, *with_gaps])).judged)
    assert false / 300 <= 0.05 + 0.025


def test_a_verdict_and_its_interval_agree():
    of_arms = arms(np.random.default_rng(3), [0.01] * 6, 4, distance=0.1)
    raised = [Scores(a.seeds, a.problems, a.values + 0.01 * i, a.benchmark) for i, a in enumerate(of_arms)]
    judged = family(against_first(raised)).judged
    assert {verdict.simultaneous.excludes(0) for verdict in judged} == {True, False}
    for verdict in judged:
        assert verdict.simultaneous.excludes(0) == (verdict.p_family < 0.05)
        assert verdict.plain.excludes(0) == (verdict.p < 0.05)
        assert verdict.simultaneous.low <= verdict.plain.low <= verdict.plain.high <= verdict.simultaneous.high
        assert verdict.p_family <= 1 - (1 - verdict.p) ** 5 + 0.01  # Šidák's bound, and the noise of the draws


def test_a_family_of_one_is_the_difference_itself():
    (only,) = against_first(arms(np.random.default_rng(4), [0.02] * 2, 3))
    (judged,) = family([only]).judged
    assert judged.simultaneous == judged.plain == only.summary.interval()
    assert judged.p_family == judged.p == only.summary.p_value()


def test_equal_contrasts_need_no_wider_interval():
    """Nine names for one arm: the correlation is 1, and nothing is tested nine times."""
    reference, arm = arms(np.random.default_rng(5), [0.0, 0.0], 1, distance=0.1)
    same = difference(arm, reference)
    judged = family([same] * 9).judged
    assert judged[0].simultaneous.half == pytest.approx(judged[0].plain.half, rel=0.02)


def test_an_arm_that_is_the_reference_itself_narrows_no_interval():
    """One seed each: it had one degree of freedom, and all others the quantile of a t with that one at their own."""
    of_arms = arms(np.random.default_rng(1), [0.0] * 10, 1)
    nine = family(against_first(of_arms))
    ten = family(against_first([*of_arms, of_arms[0]]))
    assert 0.05 / 10 < ten.alpha < nine.alpha
    assert all(b.simultaneous.half > a.simultaneous.half for a, b in zip(nine.judged, ten.judged[:-1], strict=True))
    assert ten.judged[-1].p_family == 1


def test_seeds_and_problems_need_not_be_the_same_in_all_arms():
    first, second, third = arms(np.random.default_rng(6), [0.01] * 3, 4, distance=0.1)
    second = second.of_seeds((0, 1, 3))
    third = third.of_problems(np.arange(200))
    judged = family(against_first([first, second, third]))
    # Pooled: 2 of three seeds and 3 of four. The spread of the third is the largest, and has its own.
    assert [verdict.summary.df_seed for verdict in judged.judged] == [2 + 3, 3]
    assert all(verdict.simultaneous.half > verdict.plain.half > 0 for verdict in judged.judged)
