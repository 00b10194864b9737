"""Logits of half-precision factors are those of float64 to float32 rounding."""

import pytest
import torch
from torch import nn

from rlvr.model.head import WideHead


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_of_half_precision_are_not_rounded_to_it(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(64, 50, bias=bias).to(dtype), torch.randn(9, 64).to(dtype)
    exact = hidden.double() @ head.weight.double().t() + (head.bias.double() if bias else 0)
    computed = WideHead(head)(hidden)
    assert computed.dtype == torch.float32
    torch.testing.assert_close(computed.double(), exact, rtol=1e-5, atol=1e-6)
    assert float((head(hidden).double() - exact).abs().max()) > 1e-3 * (dtype == torch.bfloat16)  # the head's own are


def test_a_float32_head_gives_its_own_logits() -> None:
    head, hidden = nn.Linear(8, 5), torch.randn(3, 8)
    assert torch.equal(WideHead(head)(hidden), head(hidden))
    assert WideHead(nn.Identity())(hidden) is hidden
