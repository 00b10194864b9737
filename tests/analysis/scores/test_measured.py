import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from analysis.scores.measured import avg_noise, avg_values, pass_noise, pass_values
from analysis.scores.metric import reliability


def test_avg_is_the_share_of_judged_samples():
    values = avg_values(np.array([8, 6, 0]), np.array([2, 6, 0]))
    assert values[:2].tolist() == [0.25, 1.0]
    assert math.isnan(values[2])  # nothing was judged


def test_pass_at_k_by_hand_and_undefined_where_samples_are_too_few():
    # C(4,2) = 6; c = 1: C(3,2) = 3 failing pairs -> 1/2; c = 2: C(2,2) = 1 -> 5/6; n = 1 < 2: undefined
    values = pass_values(np.array([4, 4, 1]), np.array([1, 2, 1]), 2)
    assert values[:2] == pytest.approx([1 / 2, 5 / 6])
    assert math.isnan(values[2])


def test_the_noise_of_avg_is_unbiased():
    """E of the estimate over c ~ Binomial(6, 0.3) is p(1 − p)/n."""
    c = np.arange(7)
    expected = stats.binom.pmf(c, 6, 0.3) @ avg_noise(np.full(7, 6), c)
    assert expected == pytest.approx(0.3 * 0.7 / 6)
    assert math.isnan(avg_noise(np.array([1]), np.array([1]))[0])


def test_the_noise_of_pass_at_k_by_simulation():
    """n = 8, c = 2: rate 2.5/9. 200,000 draws of c' give pass@4 a variance known to half a per cent."""
    drawn = np.random.default_rng(0).binomial(8, 2.5 / 9, 200_000)
    simulated = pass_values(np.full(drawn.shape, 8), drawn, 4).var()
    assert pass_noise(np.array([8]), np.array([2]), 4)[0] == pytest.approx(simulated, rel=0.02)
    assert math.isnan(pass_noise(np.array([3]), np.array([2]), 4)[0])


def test_the_noise_of_pass_at_1_is_that_of_the_mean():
    # c = 4 of 8: the rate of the plug-in is ½ too, p(1 − p)/n = 1/32
    assert pass_noise(np.array([8]), np.array([4]), 1)[0] == pytest.approx(1 / 32)


def test_pass_hat_k_and_g_pass_count_the_subsets_with_enough_right_samples():
    """All subsets of k of seven samples, of which four are right, are counted one by one."""
    right = [1, 1, 1, 1, 0, 0, 0]
    for name, least in {"pass^3": 3, "g-pass@4_0.5": 2, "g-pass@4_0.51": 3, "g-pass@5_0.6": 3, "g-pass@4_1": 4}.items():
        metric = reliability(name)
        subsets = list(combinations(right, metric.k))
        expected = sum(sum(subset) >= least for subset in subsets) / len(subsets)
        values = pass_values(np.array([7, 2]), np.array([4, 2]), metric.k, metric.least)
        assert values[0] == pytest.approx(expected, abs=1e-15)
        assert math.isnan(values[1])


@pytest.mark.parametrize("name", ["pass^0", "g-pass@4_0", "g-pass@4_1.5", "g-pass@0_0.5", "pass@4", "g-pass@4"])
def test_other_names_are_no_measures_of_reliability(name):
    assert reliability(name) is None
