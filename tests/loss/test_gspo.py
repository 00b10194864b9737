import math
from functools import partial

import pytest

from rlvr.loss.gspo import gspo
from tests.loss.by_hand import check_responses, gradient, responses

GSPO = partial(gspo, clip_low=0.1, clip_high=0.2)


def test_numbers_worked_by_hand() -> None:
    """Bounds 0.9 and 1.2. Row 0: log ratios (0.3, −0.1), s = e^{0.1} = 1.105171, A = 2: −2·s, gradient −2·s/2 a token.
    Row 1: (0.6,), s = e^{0.6}, A = 1: clipped at −1.2, no gradient. Row 2: (−0.4, −0.2), s = e^{−0.3}, A = −1: clipped
    at 0.9. Row 3: (0.5,), A = −3: 3·e^{0.5} stays, for a bad response that became likelier is not clipped."""
    batch, policy = responses([2.0, 1.0, -1.0, -3.0], [[0.3, -0.1], [0.6], [-0.4, -0.2], [0.5]])
    terms = GSPO(policy, batch)
    assert terms.loss.tolist() == pytest.approx([-2 * math.exp(0.1), -1.2, 0.9, 3 * math.exp(0.5)])
    assert terms.metrics["clip_fraction"].tolist() == [0, 1, 1, 0]
    assert terms.metrics["sequence_ratio"].tolist() == pytest.approx([math.exp(x) for x in (0.1, 0.6, -0.3, 0.5)])
    slope = gradient(terms, policy)
    assert slope[0].tolist() == pytest.approx([-math.exp(0.1)] * 2)
    assert (slope[1:3].tolist(), slope[3].tolist()) == ([[0, 0], [0, 0]], pytest.approx([3 * math.exp(0.5), 0]))


def test_agrees_with_a_plain_loop() -> None:
    def expected(A: float, log_ratios: list[float]) -> float:
        s = math.exp(sum(log_ratios) / len(log_ratios))
        return -min(A * s, A * min(max(s, 0.9), 1.2))

    check_responses(GSPO, expected)
