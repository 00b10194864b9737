"""Lengths worked by hand, and compared with sums over the distribution."""

from __future__ import annotations

import math

import pytest

from rlvr.config.lengths import Lengths


def test_mean_position_and_largest_of_lengths_that_are_cut_by_hand() -> None:
    """X with a mean of 1000 is cut at 1000 · ln 4 = 1386, which 3/4 of the responses do not reach: 750 on average. Of
    the 750 tokens, E[l²]/2 = 1000² · (1 − 1/4 · (1 + ln 4)) = 403,426 come before: 538 each. Three responses: the
    largest is 1386, as 1000 · (1 + ln 3) is 2099; a single one, of at most 10,000 tokens and 1000 on average: 1000."""
    cut = Lengths(mean=750, longest=1000 * math.log(4))
    assert cut.ended == pytest.approx(0.75)
    assert cut.position == pytest.approx(403_426 / 750, rel=1e-5)
    assert cut.largest(3) == 1000 * math.log(4)
    assert Lengths(mean=1000, longest=10_000).largest(1) == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize(("mean", "longest"), [(2000, 8192), (300, 1024), (100, 1e6), (900, 1000)])
def test_a_sum_over_the_distribution_gives_the_same(mean: float, longest: float) -> None:
    """P(l > x) = e^(−x/scale) below the limit: E[l] and E[l²]/2 are the sums of it and of x times it."""
    lengths = Lengths(mean, longest)
    step = min(longest, 60 * mean) / 100_000
    points = [(i + 0.5) * step for i in range(100_000)]
    longer = [math.exp(-x * lengths.ended / mean) for x in points]
    assert sum(longer) * step == pytest.approx(mean, rel=1e-4)
    half_square = sum(x * share for x, share in zip(points, longer, strict=True)) * step
    assert lengths.position == pytest.approx(half_square / mean, rel=1e-4)


def test_responses_that_are_all_cut_are_all_as_long() -> None:
    for longest in (2000, 1900):  # a finished run may have had longer ones
        assert Lengths(mean=2000, longest=longest).position == 1000
        assert Lengths(mean=2000, longest=longest).largest(9) == 2000


def test_the_lengths_that_other_tests_use() -> None:
    """2000 of at most 8192: 98.2 % end before, as 8192 · 0.982 / 2000 = 4.0224 and e^−4.0224 = 0.0179."""
    lengths = Lengths(mean=2000, longest=8192)
    assert lengths.ended == pytest.approx(0.9821, abs=1e-4)
    assert lengths.position == pytest.approx((2000 - 8192 * 0.0179) / 0.9821, rel=1e-3)  # 1887
