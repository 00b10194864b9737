import math
from functools import partial

import pytest

from rlvr.loss.gmpo import gmpo
from tests.loss.by_hand import check_responses, gradient, responses

GMPO = partial(gmpo, clip_low=0.4, clip_high=0.3)


def test_numbers_worked_by_hand() -> None:
    """Row 0, A = 2: (0.5, −0.9) → (0.3, −0.9), mean −0.3. Row 1, A = −1: (0.5, −0.9) → (0.5, −0.4), mean 0.05. A
    clipped token has no gradient, the other −A·ρ/2."""
    batch, policy = responses([2.0, -1.0], [[0.5, -0.9], [0.5, -0.9]])
    terms = GMPO(policy, batch)
    rho = [math.exp(-0.3), math.exp(0.05)]
    assert terms.loss.tolist() == pytest.approx([-2 * rho[0], rho[1]])
    assert terms.metrics["clip_fraction"].tolist() == [0.5, 0.5]
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([0, -rho[0], rho[1] / 2, 0])


def test_agrees_with_a_plain_loop() -> None:
    def expected(A: float, log_ratios: list[float]) -> float:
        clipped = [min(x, 0.3) if A > 0 else max(x, -0.4) for x in log_ratios]
        return -A * math.exp(sum(clipped) / len(clipped))

    check_responses(GMPO, expected)
