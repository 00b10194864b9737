from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.scores.bandit_target import basins, learned_density, target_density


def test_basins_part_three_gaussian_modes():
    arms = np.arange(50)
    reward = sum(h * np.exp(-((arms - c) ** 2) / 2 / w**2) for c, w, h in ((10, 2, 0.9), (25, 3, 1.0), (40, 2, 0.8)))
    found = basins(np.asarray(reward))
    assert len(found) == 3
    for basin, centre in zip(found, (10, 25, 40), strict=True):
        assert basin.start <= centre < basin.stop
    assert [b.start for b in found[1:]] == [b.stop for b in found[:-1]]


def test_small_bumps_and_flat_stretches_are_no_modes():
    assert len(basins(np.array([0, 1.0, 0.98, 1.0, 0, 0, 0.01, 0]))) == 1
    assert len(basins(np.array([1.0, 0, 0, 1.0]))) == 2  # at the edges


def test_target_survives_a_cold_temperature():
    assert target_density(np.array([0.0, 1.0, 1.0]), 1e-4).tolist() == [0, 0.5, 0.5]


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=9), st.floats(0.05, 5))
def test_the_exact_minimiser_is_recovered(old, eta):
    """π = π_old e^{A/η}/Z gives P_π = P_A, whatever π_old."""
    before = np.array(old) / sum(old)
    advantage = np.linspace(0, 1, len(before))
    after = before * np.exp(advantage / eta)
    assert learned_density(after / after.sum(), before) == pytest.approx(target_density(advantage, eta))


def test_arms_that_cannot_be_drawn_have_no_ratio():
    assert learned_density(np.array([0.5, 0.5]), np.array([1.0, 0.0])).tolist() == [1.0, 0.0]
