"""LAD with its normalisers: by hand, against autograd of the definition, at its minimum, and where w overflows."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from rlvr.loss.lad import lad
from rlvr.loss.lad_theoretical import lad_theoretical
from rlvr.objective import divergence
from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.objective.divergence import js, kl
from rlvr.objective.reduce import aggregate
from tests.loss.test_lad import DEFINITIONS, NAMES
from tests.support.factories import make_batch, make_policy, one_token_batch


def actions(advantage: Tensor, *, num_groups: int = 1, **fields: Tensor) -> Batch:
    """One-token answers, [B] advantages in groups of equal size."""
    B = len(advantage)
    return one_token_batch(B // num_groups, num_groups=num_groups, dtype=advantage.dtype, advantage=advantage, **fields)


def gradient(terms: Terms, policy: Policy) -> Tensor:
    return torch.autograd.grad(terms.loss.sum(), policy.logp)[0].squeeze(-1)


def test_numbers_worked_by_hand() -> None:
    """η = ½, A = (½ ln 2, 0): w = (2, 1), Z_A = 3/2. r = (1, 2), Z_π = 3/2. Normalised w' = (4/3, 2/3), r' the reverse.

    kl, x log x: r'·log(r'/w') = (2/3)·ln ½, (4/3)·ln 2. With g = r'(log(r'/w') + 1) and r'_i ∝ r_i/mean r, the slope in
    ℓ_i is g_i − r'_i·(g_1 + g_2)/2: g = (⅔(1 − ln 2), 4/3(1 + ln 2)), half their sum 1 + ⅓ ln 2.
    """
    ln2 = math.log(2)
    batch = actions(torch.tensor([ln2 / 2, 0.0], dtype=torch.float64))
    policy = make_policy(batch, log_ratio=torch.tensor([[0.0], [ln2]]))
    terms = lad_theoretical(policy, batch, divergence=kl, eta=0.5)
    assert terms.loss.tolist() == pytest.approx([-2 / 3 * ln2, 4 / 3 * ln2])
    half = 1 + ln2 / 3
    expected = [2 / 3 * (1 - ln2) - 2 / 3 * half, 4 / 3 * (1 + ln2) - 4 / 3 * half]
    assert gradient(terms, policy).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
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
    torch.testing.assert_close(gradient(terms, policy), naive.grad.squeeze(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
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
    assert (
        torch.autograd.grad(lad(policy, batch, divergence=kl, eta=0.5, ratio="token").loss.sum(), policy.logp)[
            0
        ].tolist()
        == [[1.0]] * 4
    )


def test_gradient_agrees_with_differences_of_the_value() -> None:
    batch = actions(torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64), num_groups=2)
    assert torch.autograd.gradcheck(
        lambda logp: lad_theoretical(Policy(logp), batch, divergence=js, eta=0.5).loss, make_policy(batch).logp
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_tokens_row_order_and_the_split_by_groups_change_nothing(name: str) -> None:
    loss = partial(lad_theoretical, divergence=getattr(divergence, name), eta=0.5)
    generator = torch.Generator().manual_seed(5)
    batch = make_batch(
        num_groups=2,
        num_samples=4,
        num_tokens=2,
        lengths=[1, 1, 0, 1, 1, 1, 1, 1],
        dtype=torch.float64,
        advantage=torch.randn(8, generator=generator, dtype=torch.float64),
        padding=math.nan,
    )
    policy = make_policy(batch, padding=math.inf)

    def reduced(batch: Batch, policy: Policy) -> tuple[Tensor, Tensor]:
        value = aggregate(
            loss(policy, batch).loss, batch.mask, "token-mean", num_tokens=7, num_sequences=7, max_tokens=2
        )
        return value, torch.autograd.grad(value, policy.logp)[0]

    total, slope = reduced(batch, policy)
    assert slope.isfinite().all()
    halves = [reduced(batch.select(torch.tensor([g])), Policy(policy.logp[4 * g : 4 * g + 4])) for g in (0, 1)]
    torch.testing.assert_close(halves[0][0] + halves[1][0], total)
    torch.testing.assert_close(torch.cat([h[1] for h in halves]), slope)
    order = torch.tensor([3, 2, 0, 1, 4, 7, 6, 5])
    moved = Batch(**{k: v if v is None or k.startswith("prompt") else v[order] for k, v in vars(batch).items()})
    value, shuffled = reduced(moved, Policy(policy.logp.detach()[order].requires_grad_()))
    torch.testing.assert_close(value, total)
    torch.testing.assert_close(shuffled, slope[order])
    kept = torch.tensor([0, 1, 3, 4, 5, 6, 7])  # without the row that has no tokens
    without = Batch(**{k: v if v is None or k.startswith("prompt") else v[kept] for k, v in vars(batch).items()})
    torch.testing.assert_close(reduced(without, Policy(policy.logp.detach()[kept].requires_grad_()))[1], slope[kept])


@pytest.mark.parametrize("name", NAMES)
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


def test_errors_name_the_fix() -> None:
    text = make_batch(lengths=[2] * 6)
    with pytest.raises(ValueError, match=r"a response of 2 tokens.*Pass loss=lad"):
        lad_theoretical(make_policy(text), text, divergence=js, eta=1.0)
    batch = actions(torch.zeros(2))
    with pytest.raises(ValueError, match="must be positive"):
        lad_theoretical(make_policy(batch), batch, divergence=js, eta=0.0)
    per_token = actions(torch.zeros(2), **{"logp_ref": torch.zeros(2, 1)})
    with pytest.raises(ValueError, match="one advantage per response"):
        lad_theoretical(
            make_policy(batch), Batch(**{**vars(per_token), "advantage": torch.zeros(2, 1)}), divergence=js, eta=1.0
        )
