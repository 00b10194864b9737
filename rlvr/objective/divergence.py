"""f-divergences between the policy and LAD's target, per term (LAD, arXiv:2602.20132).

Every function takes ℓ = log π/π_old and a = A/η (float tensors that broadcast, nats) and returns, elementwise,
(value, derivative) of the integrand w·f(r/w), where r = e^ℓ and w = e^a: value = w·f(r/w), derivative = d value/dℓ =
r·f'(r/w). The minimum is at ℓ = a. LAD calls `tv`, `hd`, `js` strict and `kl`, `rkl`, `jf` weak.

Differs from the paper: its Table 5 omits the ½ of Hellinger and JS, and in JS negates a twice and omits the "+1" of the
logarithm's x + 1.

Numerics. Computed in float32, or float64 if an input is; half precision is widened first. All expressions use |ℓ − a|
and the larger of r and w, so that nothing cancels near ℓ = a and no intermediate result overflows. r, w and √(rw)
saturate at e^40: results are exact for ℓ ≤ 40 and a ≤ 40, and beyond that finite, of the right sign and at most
e^40·(1 + |ℓ − a|) in size. (The range of float32 ends at e^88, but a gradient's norm is squared: above e^44 it would be
infinite, and clipping would turn the whole step into zero or NaN.) The derivatives of `tv` and `js` do not contain w:
for these a may be arbitrarily large.
"""

import math

import torch
from torch import Tensor

SATURATION = 40.0  # nats
ROUNDING = 1e-5  # nats, between engine and trainer of one policy: they agree to about 1e-6 in float32


def kl(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """KL(π ‖ target): f(x) = x log x, weak and mode-seeking."""
    log_ratio, a = _widen(log_ratio, a)
    r, gap = _exp(log_ratio), log_ratio - a
    return r * gap, r * (gap + 1)


def rkl(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """KL(target ‖ π): f(x) = −log x, weak: its derivative −w does not depend on the policy."""
    log_ratio, a = _widen(log_ratio, a)
    w, gap = _exp(a), log_ratio - a
    return -w * gap, (-w).expand_as(gap)


def jf(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Jeffreys, the sum of `kl` and `rkl`: f(x) = (x − 1) log x, weak."""
    log_ratio, a = _widen(log_ratio, a)
    gap = log_ratio - a
    difference = _difference(log_ratio, a)
    return difference * gap, _exp(log_ratio) * gap + difference


def tv(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Total variation, twice: f(x) = |x − 1|, strict. The derivative at ℓ = a is the subgradient 0, and up to ROUNDING
    nats beside it, too: of an advantage of 0 the first update would have the sign of rounding for its gradient.
    """
    log_ratio, a = _widen(log_ratio, a)
    gap = torch.nn.functional.hardshrink(log_ratio - a, ROUNDING)
    return _difference(log_ratio, a).abs(), _exp(log_ratio) * gap.sign()


def hd(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Squared Hellinger distance: f(x) = ½(√x − 1)², strict."""
    log_ratio, a = _widen(log_ratio, a)
    gap, larger = log_ratio - a, torch.maximum(log_ratio, a)
    shortfall = -torch.expm1(-gap.abs() / 2)  # 1 − √(smaller/larger of r and w)
    # r − √(rw) = √r (√r − √w)
    derivative = gap.sign() * _exp((log_ratio + larger) / 2) * shortfall / 2
    return _exp(larger) * shortfall.square() / 2, derivative


def js(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Jensen–Shannon: f(x) = ½[x log x − (x + 1) log((x + 1)/2)], strict."""
    log_ratio, a = _widen(log_ratio, a)
    gap = log_ratio - a
    size = gap.abs()
    mean = _exp(torch.maximum(log_ratio, a)) * (1 + torch.exp(-size)) / 2  # ½(r + w)
    # ln 2 + ℓ − a − softplus(ℓ − a) = log 2r/(r + w), without cancellation near zero
    log_share = gap.clamp(max=0) - torch.log1p(torch.expm1(-size) / 2)
    return mean * _missing_entropy(size), _exp(log_ratio) * log_share / 2


def _missing_entropy(size: Tensor) -> Tensor:
    """ln 2 − entropy of a coin whose log odds are `size` ≥ 0; JS = ½(r + w) times this."""
    half = size.clamp(max=1) / 2
    # ½s·tanh ½s − log cosh ½s: the same function, without cancellation for small s (both terms are of order s²)
    near = half * half.tanh() - torch.log1p(2 * (half / 2).sinh().square())
    far = math.log(2) - torch.log1p(torch.exp(-size)) - size * torch.sigmoid(-size)
    return torch.where(size < 1, near, far)


def _difference(log_ratio: Tensor, a: Tensor) -> Tensor:
    """r − w."""
    gap = log_ratio - a
    return -gap.sign() * _exp(torch.maximum(log_ratio, a)) * torch.expm1(-gap.abs())


def _exp(log: Tensor) -> Tensor:
    return log.clamp(max=SATURATION).exp()


def _widen(log_ratio: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(torch.promote_types(log_ratio.dtype, a.dtype), torch.float32)
    return log_ratio.to(wide), a.to(wide)
