import math

import pytest
import torch
from torch import Tensor

from rlvr.loss.lad import lad
from rlvr.loss.lad_theoretical import lad_theoretical
from rlvr.objective import divergence
from rlvr.objective.batch import Batch
from rlvr.objective.divergence import kl
from tests.loss.by_hand import gradient
from tests.loss.test_lad import DEFINITIONS
from tests.loss.test_laws import DIVERGENCES
from tests.support.factories import make_policy, one_token_batch


def actions(advantage: Tensor, *, num_groups: int = 1, **fields: Tensor) -> Batch:
    """One-token answers, [B] advantages in groups of equal size."""
    B = len(advantage)
    return one_token_batch(B // num_groups, num_groups=num_groups, dtype=advantage.dtype, advantage=advantage, **fields)


def test_numbers_worked_by_hand() -> None:
    """η = ½, A = (½ ln 2, 0): w = (2, 1), Z_A = 3/2. r = (1, 2), Z_π = 3/2. Normalised w' = (4/3, 2/3), r' the reverse.

    kl, x log x: r'·log(r'/w') = (2/3)·ln ½, (4/3)·ln 2. With g = r'(log(r'/w') + 1) and r'_i ∝ r_i/mean r, the slope in
    ℓ_i is g_i − r'_i·(g_1 + g_2)/2: g = (⅔(1 − ln 2), 4/3(1 + ln 2)), half their sum 1 + ⅓ ln 2."""
    ln2 = math.log(2)
    batch = actions(torch.tensor([ln2 / 2, 0.0], dtype=torch.float64))
    policy = make_policy(batch, log_ratio=torch.tensor([[0.0], [ln2]]))
    terms = lad_theoretical(policy, batch, divergence=kl, eta=0.5)
    assert terms.loss.tolist() == pytest.approx([-2 / 3 * ln2, 4 / 3 * ln2])
    half = 1 + ln2 / 3
    expected = [2 / 3 * (1 - ln2) - 2 / 3 * half, 4 / 3 * (1 + ln2) - 4 / 3 * half]
    assert gradient(terms, policy)[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_agrees_with_autograd_of_the_definition(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    batch = actions(torch.randn(10, generator=generator, dtype=torch.float64), num_groups=2)
    policy = make_policy(batch)
    eta = 0.7
    terms = lad_theoretical(policy, batch, divergence=getattr(divergence, name), eta=eta)
    naive = policy.logp.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in (range(5), range(5, 10)):
        w = torch.stack([(batch.advantage[b] / eta).exp() for b in rows])
        r = torch.stack([(naive[b, 0] - batch.logp_old[b, 0]).exp() for b in rows])
        for i, b in enumerate(rows):
            value = w[i] / w.mean() * DEFINITIONS[name](r[i] / w[i] * w.mean() / r.mean())
            assert terms.loss[b].item() == pytest.approx(value.item(), rel=1e-9, abs=1e-12)
            total = total + value
    total.backward()
    assert naive.grad is not None
    torch.testing.assert_close(gradient(terms, policy), naive.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_minimum_is_zero_at_the_target_whatever_the_common_factor(name: str) -> None:
    """r ∝ e^{A/η}: a divergence of two equal distributions. The practical loss is stationary there but not 0."""
    batch = actions(torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64))
    f = getattr(divergence, name)
    for factor in (0.0, -3.0):
        policy = make_policy(batch, log_ratio=(batch.advantage / 0.5 + factor)[:, None])
        terms = lad_theoretical(policy, batch, divergence=f, eta=0.5)
        assert abs(terms.loss.sum().item()) < 1e-12
        assert gradient(terms, policy).abs().max() < 1e-9
    away = make_policy(batch, log_ratio=0.0)
    terms = lad_theoretical(away, batch, divergence=f, eta=0.5)
    assert terms.loss.sum() > 0.1
    slope = gradient(terms, away)
    assert slope[3] < 0 < slope[1]  # downhill raises the best answer and lowers the worst
    assert slope.sum().abs() < 1e-9  # one factor for all costs nothing


def test_on_policy_without_advantage_weak_divergences_push_nothing_either() -> None:
    """`lad` with kl pushes every sample of such a group down by r; normalised, equal distributions are at rest."""
    batch = actions(torch.zeros(4, dtype=torch.float64))
    policy = make_policy(batch, log_ratio=0.0)
    assert gradient(lad_theoretical(policy, batch, divergence=kl, eta=0.5), policy).abs().max() < 1e-12
    assert gradient(lad(policy, batch, divergence=kl, eta=0.5, ratio="token"), policy).tolist() == [[1.0]] * 4


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_is_finite_where_w_overflows_float32(name: str, dtype: torch.dtype) -> None:
    """1/η = 32 and A = ±5.5: e^176. Log-ratios of ±25."""
    for A in ([5.5, -5.5, 0.0, 1.0], [0.0] * 4):
        for step in ([25.0, -25, 0, 1], [25.0] * 4, [-25.0] * 4, [-25.0, 25, 25, 25]):
            batch = actions(torch.tensor(A, dtype=dtype))
            policy = make_policy(batch, log_ratio=torch.tensor(step)[:, None])
            terms = lad_theoretical(policy, batch, divergence=getattr(divergence, name), eta=1 / 32)
            assert terms.loss.isfinite().all()
            slope = gradient(terms, policy)
            assert slope.isfinite().all()
            assert slope.float().square().sum().isfinite()
