"""Small, valid, seeded objects for tests: a test passes the fields that matter to it, the others are filled in."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlvr.objective.batch import Batch, Policy


def make_batch(
    *,
    num_groups: int = 2,
    num_samples: int = 3,
    num_tokens: int = 4,
    lengths: Sequence[int] | None = None,
    seed: int = 0,
    padding: float = 0.0,
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> Batch:
    """B = num_groups · num_samples random responses; `fields` replaces any field of `Batch`.

    lengths: tokens of each response (default: drawn from 1 .. num_tokens, the first row full).
    padding: value of every per-token float beyond a response's end. NaN shows whether padding leaks through a mask."""
    generator = torch.Generator().manual_seed(seed)
    B, T = num_groups * num_samples, num_tokens
    if lengths is None:
        drawn = torch.randint(1, T + 1, (B,), generator=generator)
        drawn[:1] = T
    else:
        drawn = torch.tensor(lengths)
    mask = torch.arange(T) < drawn[:, None]

    def per_token(low: float, high: float) -> Tensor:
        values = low + (high - low) * torch.rand((B, T), generator=generator, dtype=torch.float64)
        return torch.where(mask, values, padding).to(dtype)

    filled: dict[str, Any] = {
        "tokens": torch.randint(2, 11, (B, T), generator=generator) * mask,
        "mask": mask,
        "logp_old": per_token(-3.0, -0.1),
        "advantage": torch.randn((B,), generator=generator, dtype=torch.float64).to(dtype),
        "reward": torch.randint(0, 2, (B,), generator=generator).to(dtype),
        "group": torch.arange(num_groups).repeat_interleave(num_samples),
        "prompt": torch.randint(2, 11, (num_groups, 5), generator=generator),
        "prompt_mask": torch.ones((num_groups, 5), dtype=torch.bool),
        "logp_ref": per_token(-3.0, -0.1),
    }
    return Batch(**{**filled, **fields})


def one_token_batch(
    num_samples: int, *, num_groups: int = 1, dtype: torch.dtype = torch.float64, **fields: Any
) -> Batch:
    """Responses of one token each, as arms of a bandit; `fields` as in `make_batch`."""
    lengths = [1] * (num_groups * num_samples)
    return make_batch(
        num_groups=num_groups, num_samples=num_samples, num_tokens=1, lengths=lengths, dtype=dtype, **fields
    )


def make_policy(
    batch: Batch, *, log_ratio: Tensor | float | None = None, seed: int = 1, padding: float = 0.0, **fields: Any
) -> Policy:
    """A policy near the one that sampled `batch`. `policy.logp` is a leaf with gradient.

    log_ratio: logp − logp_old of each response token, [B, T] or a number (default: normal with deviation 0.3).
    padding: value of logp and entropy beyond a response's end."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch.tokens.shape, generator=generator, dtype=torch.float64)
    step = 0.3 * noise if log_ratio is None else torch.as_tensor(log_ratio, dtype=torch.float64)
    logp = torch.where(batch.mask, batch.logp_old.double() + step, padding).to(batch.logp_old.dtype)
    entropy = torch.where(batch.mask, noise.abs(), padding).to(batch.logp_old.dtype)
    return Policy(**{"logp": logp.requires_grad_(), "entropy": entropy, **fields})
