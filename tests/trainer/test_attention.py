"""Packed attention against a loop over what each token sees."""

from __future__ import annotations

import torch

from rlvr.trainer import pack
from rlvr.trainer.attention import attend
from tests.trainer.test_pack import small, visible


def test_half_precision_attention_rounds_once_on_a_cpu() -> None:
    """Against a float64 loop over what each token sees: results and gradients to half a unit in the last place."""
    packed, H, N, D = pack.pack(small(), shared=True).packed, 2, 6, 8
    assert packed is not None
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(1, heads, N, D, generator=generator).bfloat16() for heads in (H, 1, 1)]
    given = [x.clone().requires_grad_() for x in draw]
    found, _ = attend(torch.nn.Identity(), *given, attention_mask=None, packed=packed)
    q, k, v = exact = [x.double().requires_grad_() for x in draw]
    rows = []
    for n, seen in enumerate(map(sorted, visible(packed, N))):
        weights = (torch.einsum("hd,sd->hs", q[0, :, n], k[0, 0, seen]) / D**0.5).softmax(-1)
        rows.append(weights @ v[0, 0, seen])
    expected = torch.stack(rows)[None]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)
    found.float().square().sum().backward()
    (2 * found.detach().double() * expected).sum().backward()  # the same gradient of the result
    for half, whole in zip(given, exact, strict=True):
        assert half.grad is not None
        torch.testing.assert_close(half.grad.double(), whole.grad, rtol=2**-8, atol=1e-5)
