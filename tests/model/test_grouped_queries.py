"""Which attention on a GPU gets keys for every head of queries. Shapes alone: torch's fake tensors need no GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlvr.model.grouped_queries import for_kernels


def test_keys_are_repeated_where_no_fused_kernel_takes_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, masked, capability, repeated in (
        (torch.bfloat16, False, (8, 0), False),
        (torch.bfloat16, True, (9, 0), True),
        (torch.float32, False, (9, 0), True),
        (torch.float16, False, (7, 5), True),  # a T4 has no flash attention
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, capability=capability: capability)
        with FakeTensorMode():
            query = torch.empty(2, 6, 5, 8, dtype=dtype, device="cuda")
            key, value = (torch.empty(2, 3, 5, 8, dtype=dtype, device="cuda") for _ in range(2))
            key, value, grouped = for_kernels(query, key, value, masked=masked)
        assert grouped is not repeated, (dtype, masked, capability)
        assert key.shape == value.shape == (2, 6 if repeated else 3, 5, 8)


def test_repeated_keys_are_those_of_each_head() -> None:
    """Heads 0, 1 of queries read the first head of keys, 2, 3 the second: as `enable_gqa` defines it."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    assert for_kernels(query, key, value, masked=True) == (key, value, True)  # a CPU takes groups
    attend = torch.nn.functional.scaled_dot_product_attention
    repeated = attend(query, key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1))
    torch.testing.assert_close(repeated, attend(query, key, value, enable_gqa=True))
