"""AdamW with a schedule that counts optimiser steps, and the norm of the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlvr.trainer.knobs import Knobs

DECAY = 0.1  # share of the schedule in which warmup–stable–decay falls, unless trainer.decay_steps says


def learning_rate(step: int, knobs: Knobs) -> float:
    """Learning rate of optimiser step `step` (the first is 0): a function of the step alone, so that a resumed run
    goes on exactly.

    Rises linearly to `lr` at step `warmup_steps` − 1; then constant, or falling to `final_lr`·lr at `total_updates` on
    a straight line, half a cosine, or a straight line over the last `decay_steps` alone ("wsd", arXiv:2404.06395; None:
    a tenth of all).
    """
    lr, total, final_lr = knobs.lr, knobs.total_updates, knobs.final_lr
    if step < knobs.warmup_steps:
        return lr * (step + 1) / knobs.warmup_steps
    falling = total - knobs.warmup_steps
    if knobs.schedule == "wsd":
        falling = min(falling, max(1, round(DECAY * total)) if knobs.decay_steps is None else knobs.decay_steps)
    progress = min(1.0, max(0, step - (total - falling)) / max(1, falling))
    match knobs.schedule:
        case "constant":
            return lr
        case "linear" | "wsd":
            return lr * (1 - (1 - final_lr) * progress)
        case "cosine":
            return lr * (final_lr + (1 - final_lr) * (1 + math.cos(math.pi * progress)) / 2)


def adamw(model: Iterable[nn.Parameter], heads: Iterable[nn.Parameter], knobs: Knobs) -> torch.optim.AdamW:
    """Fused AdamW: a third of the time of the default on a small model on CPU (0.4 against 0.8 ms), and bit-stable.

    Each parameter group has its learning rate as `lr` and, for schedules, as `peak`. The state exists from the start,
    so that a checkpoint has the same tensors at any step.
    """
    groups = list[dict[str, Any]]()
    for parameters, lr in ((model, knobs.lr), (heads, knobs.head_lr or knobs.lr)):
        trained = [p for p in parameters if p.requires_grad]
        if trained:
            groups.append({"params": trained, "lr": lr, "peak": lr})
    betas = (knobs.betas[0], knobs.betas[1])
    optimiser = torch.optim.AdamW(groups, betas=betas, eps=knobs.eps, weight_decay=knobs.weight_decay, fused=True)
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            optimiser.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimiser


def set_steps(optimiser: torch.optim.AdamW, steps: int) -> None:
    """How many steps its averages have seen: what AdamW corrects their bias for."""
    for each in optimiser.state.values():
        each["step"].fill_(steps)


def forget(optimiser: torch.optim.AdamW) -> None:
    """Back to averages that have seen nothing; learning rates stay."""
    set_steps(optimiser, 0)
    for each in optimiser.state.values():
        each["exp_avg"].zero_()
        each["exp_avg_sq"].zero_()


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], max_norm: float, *, scale: float = 1.0) -> float:
    """Scale gradients to a global L2 norm of `max_norm` at most (0: leave them). Returns the norm before, all ranks'.

    scale: what the loss was multiplied with; gradients and norm are those without it. A norm that is not finite leaves
    the gradients alone.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    value = float(norm) / scale
    factor = (max_norm / value if 0 < max_norm < value else 1.0) / scale
    if math.isfinite(value) and factor != 1:
        _scale(gradients, factor)
    return value


def _scale(gradients: list[Tensor], factor: float) -> None:
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    torch._foreach_mul_(local, factor)  # pyright: ignore[reportPrivateImportUsage]
