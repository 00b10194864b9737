import math
from functools import partial

import pytest
import torch

from rlvr.loss.drpo import drpo
from tests.loss.by_hand import gradient
from tests.support.factories import make_batch, make_policy

DRPO = partial(drpo, delta=0.25)


def test_agrees_with_a_plain_loop() -> None:
    """Gradient −A·r·(1 − sign(A(r − 1))·|p − q|/delta)."""
    batch = make_batch(num_groups=4, num_samples=4, dtype=torch.float64)
    policy = make_policy(batch)
    terms = DRPO(policy, batch)
    slope = gradient(terms, policy)
    turned = 0
    for b, t in batch.mask.nonzero().tolist():
        A, p, q = batch.advantage[b].item(), math.exp(policy.logp[b, t].item()), math.exp(batch.logp_old[b, t].item())
        r = p / q
        assert terms.loss[b, t].item() == pytest.approx(-A * r + abs(A) * q * (r - 1) ** 2 / 0.5, rel=1e-9)
        expected = -A * r * (1 - math.copysign(1, A * (r - 1)) * abs(p - q) / 0.25)
        assert slope[b, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
        turned += expected * A > 0
    assert turned  # beyond delta the token is pulled back
