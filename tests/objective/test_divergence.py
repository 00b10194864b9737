"""The six divergences against numbers worked by hand, 60-digit arithmetic of their definitions, and at extremes."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from rlvr.objective import divergence as module
from rlvr.objective.batch import Divergence

# The definitions, from f alone: f and f' of x = r/w. Nothing here is shared with the implementation.
Scalar = Callable[[mpf], mpf]
GENERATORS: dict[str, tuple[Scalar, Scalar]] = {
    "kl": (lambda x: x * mpmath.log(x), lambda x: mpmath.log(x) + 1),
    "rkl": (lambda x: -mpmath.log(x), lambda x: -1 / x),
    "jf": (lambda x: (x - 1) * mpmath.log(x), lambda x: mpmath.log(x) + 1 - 1 / x),
    "tv": (lambda x: abs(x - 1), lambda x: mpmath.sign(x - 1)),
    "hd": (lambda x: (mpmath.sqrt(x) - 1) ** 2 / 2, lambda x: (1 - 1 / mpmath.sqrt(x)) / 2),
    "js": (
        lambda x: (x * mpmath.log(x) - (x + 1) * mpmath.log((x + 1) / 2)) / 2,
        lambda x: mpmath.log(2 * x / (x + 1)) / 2,
    ),
}
NAMES = sorted(GENERATORS)


def divergence(name: str) -> Divergence:
    return getattr(module, name)


def exact(name: str, log_ratio: float, a: float) -> tuple[float, float]:
    """(w f(r/w), r f'(r/w)) in 60 digits."""
    f, slope = GENERATORS[name]
    with mpmath.workdps(60):
        r, w = mpmath.exp(mpf(log_ratio)), mpmath.exp(mpf(a))
        return float(w * f(r / w)), float(r * slope(r / w))


def both(name: str, log_ratio: float, a: float, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    value, slope = divergence(name)(torch.tensor(log_ratio, dtype=dtype), torch.tensor(a, dtype=dtype))
    return value.item(), slope.item()


# r = 2, w = 1: ℓ = ln 2 = 0.693147, a = 0. ln 3 = 1.098612, √2 = 1.414214.
BY_HAND = {
    "kl": (1.386294, 3.386294),  # 2 ln 2 ; 2 (ln 2 + 1)
    "rkl": (-0.693147, -1.0),  # −ln 2 ; −1
    "jf": (0.693147, 2.386294),  # (2 − 1) ln 2 ; 2 (ln 2 + 1) − 1
    "tv": (1.0, 2.0),  # |2 − 1| ; 2
    "hd": (0.085786, 0.292893),  # ½ (√2 − 1)² = ½ (3 − 2√2) ; ½ (2 − √2)
    "js": (0.084950, 0.287682),  # ½ (2 ln 2 − 3 ln 1.5) = ½ (1.386294 − 1.216395) ; ½ · 2 · ln(2·2/3)
}


@pytest.mark.parametrize("name", NAMES)
def test_numbers_worked_by_hand(name: str) -> None:
    assert both(name, math.log(2), 0.0) == pytest.approx(BY_HAND[name], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_agrees_with_sixty_digits_over_the_working_range(name: str, dtype: torch.dtype, tolerance: float) -> None:
    """ℓ in ±25, a in ±40, and a fine line around ℓ = a where differences cancel: relative error of value and slope."""
    pairs = [(ell, a) for ell in torch.linspace(-25, 25, 41).tolist() for a in torch.linspace(-40, 40, 65).tolist()]
    pairs += [(a + s * 10.0**-n, a) for a in (-20.0, -0.5, 0.0, 1.0, 20.0) for n in range(5) for s in (-1, 1)]
    inputs = torch.tensor(pairs, dtype=dtype)
    value, slope = divergence(name)(inputs[:, 0], inputs[:, 1])
    for (ell, a), *got in zip(inputs.tolist(), value.tolist(), slope.tolist(), strict=True):
        wanted = exact(name, ell, a)
        # The slope of kl crosses zero at ℓ = a − 1: there the error is relative to its two parts.
        scale = math.exp(ell) * 2 if name == "kl" else 0.0
        assert got[0] == pytest.approx(wanted[0], rel=tolerance, abs=1e-37), (ell, a)
        assert got[1] == pytest.approx(wanted[1], rel=tolerance, abs=max(scale * tolerance, 1e-37)), (ell, a)


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_the_derivative_of_the_value(name: str) -> None:
    log_ratio = torch.linspace(-3, 3, 24, dtype=torch.float64).requires_grad_()
    a = torch.linspace(2, -2.5, 24, dtype=torch.float64)
    value, slope = divergence(name)(log_ratio, a)
    value.sum().backward()
    torch.testing.assert_close(log_ratio.grad, slope.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_finite_and_points_the_right_way_however_extreme_the_advantage(name: str, dtype: torch.dtype) -> None:
    """1/η = 32 with an advantage of 5.5 gives a = 176; r and w saturate at e^40."""
    log_ratio = torch.linspace(-25, 25, 51).to(dtype)[:, None]
    a = torch.linspace(-300, 300, 601).to(dtype)[None, :]
    value, slope = divergence(name)(log_ratio, a)
    assert value.dtype == slope.dtype == torch.float32
    assert value.isfinite().all()
    assert slope.isfinite().all()
    bound = math.exp(40) * (1 + 325) * 1.001
    assert value.abs().max() <= bound
    assert slope.abs().max() <= bound
    gap = log_ratio.double() - a.double()
    wanted = {"kl": (gap + 1).sign(), "rkl": -torch.ones_like(gap)}.get(name, gap.sign())
    assert (slope.sign() * wanted >= 0).all()
    assert ((slope != 0) | (a < -80) | (wanted == 0)).all()  # e^{−80} and less may vanish, a large w may not


def test_saturates_at_e40_exactly() -> None:
    assert both("rkl", 0.0, 100.0, torch.float32)[1] == pytest.approx(-math.exp(40), rel=1e-6)
    assert both("rkl", 0.0, 39.0, torch.float32)[1] == pytest.approx(-math.exp(39), rel=1e-5)
    assert both("tv", 0.0, 100.0, torch.float32)[1] == -1.0
    assert both("js", 0.0, 100.0, torch.float32)[1] == pytest.approx((math.log(2) - 100) / 2, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(a=st.floats(-30, 30))
def test_is_zero_at_equality(name: str, a: float) -> None:
    value, slope = both(name, a, a)
    assert value == 0
    # f'(1) = 1 for kl and −1 for rkl: the weak ones push even where nothing is wrong
    assert slope == pytest.approx({"kl": math.exp(a), "rkl": -math.exp(a)}.get(name, 0.0), rel=1e-12)


distributions = st.lists(st.floats(-6, 6), min_size=2, max_size=6)


@pytest.mark.parametrize("name", NAMES)
@given(logits=distributions, targets=distributions)
def test_is_non_negative_in_expectation(name: str, logits: list[float], targets: list[float]) -> None:
    """Σ π_old·w·f(r/w) ≥ 0 when π and the target both sum to 1, π_old uniform."""
    size = min(len(logits), len(targets))
    log_ratio = torch.tensor(logits[:size], dtype=torch.float64).log_softmax(0) + math.log(size)
    a = torch.tensor(targets[:size], dtype=torch.float64).log_softmax(0) + math.log(size)
    assert divergence(name)(log_ratio, a)[0].mean() >= -1e-12


@pytest.mark.parametrize("name", ["hd", "jf", "js", "tv"])
def test_on_policy_the_sign_of_the_advantage_decides(name: str) -> None:
    """ℓ = 0: descent makes a bad answer less likely, a good one more likely, and leaves a group with A = 0 alone."""
    assert both(name, 0.0, -4.0)[1] > 0 > both(name, 0.0, 4.0)[1]
    assert both(name, 0.0, 0.0)[1] == 0


def test_inputs_broadcast() -> None:
    value, slope = module.rkl(torch.zeros(2, 3), torch.tensor([[1.0], [2.0]]))
    assert value.shape == slope.shape == (2, 3)
    torch.testing.assert_close(slope[:, 0], torch.tensor([-math.e, -(math.e**2)]))


def test_rounding_is_no_gradient_of_total_variation() -> None:
    """Of an advantage of 0 the first update is at the target; beyond rounding it is ±r: e^0.1 and −e^−0.1."""
    gap = torch.tensor([2e-7, 0.0, -2e-7, 0.1, -0.1])
    _, derivative = module.tv(gap, torch.zeros(5))
    assert derivative.tolist() == pytest.approx([0, 0, 0, 1.1051709, -0.9048374])
