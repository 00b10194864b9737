from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.scores.stats import avg_values, bootstrap, interval, mean, pass_values


def test_avg_is_the_share_of_judged_samples():
    values = avg_values(np.array([8, 6, 0]), np.array([2, 6, 0]))
    assert values[:2].tolist() == [0.25, 1.0]
    assert math.isnan(values[2])  # nothing was judged


def test_pass_at_k_by_hand_and_undefined_where_samples_are_too_few():
    # C(4,2) = 6; c = 1: C(3,2) = 3 failing pairs -> 1/2; c = 2: C(2,2) = 1 -> 5/6; n = 1 < 2: undefined
    values = pass_values(np.array([4, 4, 1]), np.array([1, 2, 1]), 2)
    assert values[:2] == pytest.approx([1 / 2, 5 / 6])
    assert math.isnan(values[2])


def test_interval_of_a_binomial_share_is_close_to_the_analytic_one():
    """400 problems answered right with share 0.3, one seed: mean ± 1.96 sqrt(0.3·0.7/400)."""
    values = (np.arange(400) < 120).astype(float)[None, :]
    low, high = interval(bootstrap(values, key="any"))
    half = 1.959964 * math.sqrt(0.3 * 0.7 / 400)
    assert low == pytest.approx(0.3 - half, abs=0.005)
    assert high == pytest.approx(0.3 + half, abs=0.005)


def test_seeds_widen_the_interval_by_their_own_variance():
    """Problems all alike, four seeds at 0.2, 0.4, 0.6, 0.8: the spread of a mean of 4 draws, sqrt(0.05/4) = 0.112."""
    values = np.repeat(np.array([[0.2], [0.4], [0.6], [0.8]]), 50, axis=1)
    assert bootstrap(values).std() == pytest.approx(math.sqrt(0.05 / 4), rel=0.06)


def test_problems_that_seeds_share_are_not_averaged_away():
    """Seeds identical: more of them must not shrink what the choice of problems leaves open."""
    one = (np.arange(100) < 50).astype(float)[None, :]
    alone = interval(bootstrap(one, key="x"))
    eight = interval(bootstrap(np.repeat(one, 8, axis=0), key="x"))
    assert eight == pytest.approx(alone, abs=1e-12)


def test_undefined_problems_leave_the_mean():
    values = np.array([[1.0, np.nan, 0.0, 1.0]])
    assert mean(values) == pytest.approx(2 / 3)
    assert np.nanmean(bootstrap(values)) == pytest.approx(2 / 3, abs=0.03)


def test_draws_repeat_and_are_paired_between_cells():
    a, b = np.random.default_rng(1).random((2, 3, 40))
    assert np.array_equal(bootstrap(a, key="m"), bootstrap(a, key="m"))
    # A constant shift moves every replicate alike: the same problems and seeds were drawn for both.
    assert np.allclose(bootstrap(b + 0.1, key="m") - bootstrap(b, key="m"), 0.1)


def test_bootstrap_agrees_with_a_plain_loop():
    """The vectorised weights against draws written out, with the same generator calls."""
    from analysis.scores.stats import _problem_draws, _seed_draws

    values = np.random.default_rng(2).random((3, 7))
    W, V = _problem_draws("k", 7, 50), _seed_draws(3, 50)
    expected = []
    for r in range(50):
        drawn = [values[s, p] for s in range(3) for _ in range(V[r, s]) for p in range(7) for _ in range(W[r, p])]
        assert len(drawn) == 21
        expected.append(sum(drawn) / 21)
    assert bootstrap(values, key="k", replicates=50) == pytest.approx(expected)
