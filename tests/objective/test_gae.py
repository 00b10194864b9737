"""Generalised advantages: by hand, against the sum over future errors, whitened, with holes in the mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.objective.advantage import gae


def test_numbers_worked_by_hand() -> None:
    """γ = 0.5, λ = 0.5. Row 0: V = (1, 2), R = 3. δ₁ = 3 − 2 = 1; δ₀ = 0.5·2 − 1 = 0; A₁ = 1, A₀ = 0 + 0.25·1.
    Row 1: one token, V = 4, R = 1: A = −3."""
    mask = torch.tensor([[True, True], [True, False]])
    value = torch.tensor([[1.0, 2.0], [4.0, float("nan")]])
    advantage, returns = gae(
        torch.tensor([3.0, 1.0]), torch.tensor([0, 0]), mask, value, gamma=0.5, lam=0.5, whiten=False
    )
    assert (advantage.tolist(), returns.tolist()) == ([[0.25, 1.0], [-3.0, 0.0]], [[1.25, 3.0], [1.0, 0.0]])
    # Mean (0.25 + 1 − 3)/3 = −7/12; centred (10, 19, −29)/12; variance (100 + 361 + 841)/144/2.
    white, same = gae(torch.tensor([3.0, 1.0]), torch.tensor([0, 0]), mask, value, gamma=0.5, lam=0.5, whiten=True)
    deviation = (1302 / 288) ** 0.5
    assert white.tolist() == [
        pytest.approx([10 / 12 / deviation, 19 / 12 / deviation], rel=1e-5),
        pytest.approx([-29 / 12 / deviation, 0.0], rel=1e-5),
    ]
    assert torch.equal(same, returns)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_is_the_discounted_sum_of_future_errors(seed: int, gamma: float, lam: float) -> None:
    """A_t = Σ_k (γλ)^k δ_{t+k} over the tokens that the mask leaves, holes closed."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, 7, generator=generator) < 0.6
    value = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    reward = torch.randn(5, generator=generator, dtype=torch.float64)
    advantage, returns = gae(reward, torch.zeros(5, dtype=torch.int64), mask, value, gamma=gamma, lam=lam, whiten=False)
    for b in range(5):
        V = [*value[b][mask[b]].tolist(), 0.0]
        n = len(V) - 1
        delta = [(reward[b].item() if t == n - 1 else 0.0) + gamma * V[t + 1] - V[t] for t in range(n)]
        expected = [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]
        assert advantage[b][mask[b]].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert returns[b][mask[b]].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, V, strict=False)], abs=1e-9
        )
        assert not advantage[b][~mask[b]].any()


def test_without_discount_returns_are_the_reward() -> None:
    """γ = λ = 1: every return is R, whatever the values are."""
    value = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    _, returns = gae(torch.tensor([1.0, 0.5]).double(), torch.zeros(2), mask, value, gamma=1, lam=1, whiten=True)
    torch.testing.assert_close(returns, torch.tensor([[1, 1, 1], [0.5, 0.5, 0]], dtype=torch.float64))


def test_whitening_adds_its_constant_to_the_variance() -> None:
    """Advantages ±1e-4: variance 2e-8 (unbiased, of two), so that they become ±1e-4/√(2e-8 + 1e-8)."""
    value = torch.tensor([[-1e-4], [1e-4]], dtype=torch.float64)
    advantage, _ = gae(torch.zeros(2), torch.zeros(2), value < 1, value, gamma=1, lam=1, whiten=True)
    assert advantage.flatten().tolist() == pytest.approx([1e-4 / 3e-8**0.5, -1e-4 / 3e-8**0.5], rel=1e-6)


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_whitening_what_does_not_differ_gives_zero(tokens: int) -> None:
    mask = torch.arange(4)[None] < tokens
    advantage, _ = gae(torch.ones(1), torch.zeros(1), mask, torch.zeros(1, 4), gamma=1, lam=1, whiten=True)
    assert not advantage.any()
