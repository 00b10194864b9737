import math
from functools import partial

import pytest

from rlvr.loss.grpo import grpo
from tests.loss.by_hand import arms, check_tokens, gradient

# (A, r, loss, d loss/dℓ, clipped): ε 0.2 below, 0.28 above; d loss/dℓ is −A·r or 0
BY_HAND = [
    (2.0, 1.0, -2.0, -2.0, 0.0),
    (2.0, 1.5, -2.56, 0.0, 1.0),  # −2·1.28 > −2·1.5
    (2.0, 0.5, -1.0, -1.0, 0.0),  # −2·0.8 < −2·0.5: pessimism keeps the gradient
    (-2.0, 1.5, 3.0, 3.0, 0.0),
    (-2.0, 0.5, 1.6, 0.0, 1.0),  # 2·0.8 > 2·0.5
    (0.0, 1.5, 0.0, 0.0, 0.0),
]


def test_numbers_worked_by_hand() -> None:
    A, r, loss, slope, clipped = map(list, zip(*BY_HAND, strict=True))
    batch, policy = arms(A, [math.log(x) for x in r])
    terms = grpo(policy, batch, clip_low=0.2, clip_high=0.28, dual_clip=None)
    assert terms.loss.flatten().tolist() == pytest.approx(loss)
    assert gradient(terms, policy).flatten().tolist() == pytest.approx(slope)
    assert terms.metrics["clip_fraction"].flatten().tolist() == clipped
    assert "dual_clip_fraction" not in terms.metrics


def test_dual_clip_bounds_the_loss_of_bad_answers_only() -> None:
    """c = 3: A = −2, r = 5: 10 becomes 6 without gradient; A = −2, r = 2: 4 stays; A = 2, r = 0.1: −0.2 stays."""
    batch, policy = arms([-2.0, -2.0, 2.0], [math.log(x) for x in (5.0, 2.0, 0.1)])
    terms = grpo(policy, batch, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert terms.loss.flatten().tolist() == pytest.approx([6, 4, -0.2])
    assert gradient(terms, policy).flatten().tolist() == pytest.approx([0, 4, -0.2])
    assert terms.metrics["dual_clip_fraction"].flatten().tolist() == [1, 0, 0]
    assert terms.metrics["clip_fraction"].flatten().tolist() == [0, 0, 0]


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_agrees_with_a_plain_loop(dual_clip: float | None) -> None:
    def expected(A: float, logp: float, old: float, _: float) -> float:
        r = math.exp(logp - old)
        loss = -min(A * r, A * min(max(r, 0.9), 1.3))
        return min(loss, -A * dual_clip) if dual_clip is not None and A < 0 else loss

    check_tokens(partial(grpo, clip_low=0.1, clip_high=0.3, dual_clip=dual_clip), expected)


def test_log_ratio_is_clamped_at_20_nats_with_no_gradient_beyond() -> None:
    batch, policy = arms([-1.0, 1.0], [30.0, -30.0])
    terms = grpo(policy, batch, clip_low=0.2, clip_high=0.2, dual_clip=None)
    assert terms.loss.flatten().tolist() == pytest.approx([math.exp(20), -math.exp(-20)])
    assert gradient(terms, policy).flatten().tolist() == [0, 0]
