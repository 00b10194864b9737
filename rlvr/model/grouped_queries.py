"""Attention in which several heads of queries share keys and values, where a GPU has no fused kernel for it."""

import torch
from torch import Tensor

AMPERE = (8, 0)  # compute capability from which the kernel for grouped queries in half precision exists


def takes_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a GPU has a fused kernel for grouped queries without a mask."""
    return dtype != torch.float32 and torch.cuda.get_device_capability(device) >= AMPERE


def for_kernels(query: Tensor, key: Tensor, value: Tensor, *, masked: bool) -> tuple[Tensor, Tensor, bool]:
    """(key, value, whether the queries are still grouped), for `scaled_dot_product_attention` of [b, heads, t, D].

    masked: whether a mask is passed. On a GPU keys and values are repeated for each head of queries where no fused
    kernel takes groups: with a mask, in float32, or before Ampere. The fallback would hold all scores in memory.
    """
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1 or not query.is_cuda:
        return key, value, repeats > 1
    if not masked and takes_groups(query.device, query.dtype):
        return key, value, True
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1), False
