"""What a policy in training learns beside its words: a value per token, log Z per prompt. Computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DROPOUT = 0.1
LAYERS = 2  # of `LogZ`, before the last


class Value(nn.Module):
    """Expected reward from the last hidden state before each token (PPO, arXiv:1707.06347). Starts at 0.

    The hidden state is normalised to mean 0 and deviation 1: a table policy's are logits, −1e4 among them.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [n, h] → [n]"""
        x = nn.functional.layer_norm(hidden.float(), hidden.shape[-1:])
        return self.out(x).sum(-1)  # of one number: FSDP's hooks dislike views


class LogZ(nn.Module):
    """log of FlowRL's partition function from the mean last hidden state of a prompt (arXiv:2509.15207).

    Linear–GELU–LayerNorm–Dropout twice, then Linear to 1, which starts at 0: log Z = 0, as the reference policy's own.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.inner = nn.ModuleList([nn.Linear(width, width) for _ in range(LAYERS)])
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(LAYERS)])
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, prompt: Tensor, keep: Tensor | None) -> Tensor:
        """prompt [P, h], keep [P, 2, h] bool: which units dropout leaves, None for all → [P]"""
        x = prompt.float()
        for index, (inner, norm) in enumerate(zip(self.inner, self.norm, strict=True)):
            x = norm(nn.functional.gelu(inner(x)))
            if keep is not None:
                x = torch.where(keep[:, index], x / (1 - DROPOUT), 0.0)
        return self.out(x).sum(-1)


def prompt_mean(hidden: Tensor, place: Tensor, owner: Tensor, num_prompts: int) -> Tensor:
    """[P, h] float32: mean over each prompt's tokens. hidden [N, h]; place, owner [n]: tokens of prompts, and whose."""
    picked = hidden.index_select(0, place).float()
    total = picked.new_zeros(num_prompts, picked.shape[1]).index_add(0, owner, picked)
    # Counted as a sum of ones: for torch.bincount the host waits for a GPU.
    size = picked.new_zeros(num_prompts).index_add(0, owner, picked.new_ones(len(owner)))
    return total / size.clamp(min=1)[:, None]
