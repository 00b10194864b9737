"""Heads of a policy in training beside the language model's: a value per token, log Z per prompt; in float32."""

import torch
from torch import Tensor, nn

DROPOUT = 0.1
LAYERS = 2  # hidden layers of `LogZ`


class Value(nn.Module):
    """Expected reward from the last hidden state before each token (PPO, arXiv:1707.06347). Starts at 0.

    The hidden state is normalised to mean 0 and deviation 1: those of a table policy are logits, some of them −1e4.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [n, h] → [n]"""
        x = nn.functional.layer_norm(hidden.float(), hidden.shape[-1:])
        return self.out(x).sum(-1)  # a sum of one number, not [..., 0]: FSDP's hooks do not work with views


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
        """prompt [P, h], keep [P, 2, h] bool: units that dropout keeps, None for all → [P]"""
        x = prompt.float()
        for index, (inner, norm) in enumerate(zip(self.inner, self.norm, strict=True)):
            x = norm(nn.functional.gelu(inner(x)))
            if keep is not None:
                x = torch.where(keep[:, index], x / (1 - DROPOUT), 0.0)
        return self.out(x).sum(-1)


HEADS: dict[str, type[Value] | type[LogZ]] = {"value": Value, "log_z": LogZ}  # by what a loss declares that it needs


def prompt_mean(hidden: Tensor, place: Tensor, owner: Tensor, num_prompts: int) -> Tensor:
    """[P, h] float32: mean over each prompt's tokens.

    hidden [N, h]; place [n]: places of the prompts' tokens; owner [n]: the prompt of each.
    """
    picked = hidden.index_select(0, place).float()
    total = picked.new_zeros(num_prompts, picked.shape[1]).index_add(0, owner, picked)
    # Tokens are counted as a sum of ones: torch.bincount would make the host wait for the GPU.
    size = picked.new_zeros(num_prompts).index_add(0, owner, picked.new_ones(len(owner)))
    return total / size.clamp(min=1)[:, None]
