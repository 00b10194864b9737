"""AdamW with a schedule that counts optimiser steps, and the norm of the gradient."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from rlvr.trainer.distributed import full, local
from rlvr.trainer.knobs import Knobs

DECAY = 0.1  # share of the schedule in which warmup–stable–decay ("wsd") falls, if trainer.decay_steps is not set


def learning_rate(step: int, knobs: Knobs) -> float:
    """Learning rate of optimiser step `step` (the first is 0), a function of the step alone.

    It rises linearly to `lr` at step `warmup_steps` − 1. Then it is constant, or falls to `final_lr`·lr at
    `total_updates`: linearly, as half a cosine, or linearly over the last `decay_steps` only ("wsd", arXiv:2404.06395;
    None: a tenth of all steps).
    """
    lr, total, final_lr = knobs.lr, knobs.total_updates, knobs.final_lr
    if step < knobs.warmup_steps:
        return lr * (step + 1) / knobs.warmup_steps
    num_falling = total - knobs.warmup_steps
    if knobs.schedule == "wsd":
        decay_steps = max(1, round(DECAY * total)) if knobs.decay_steps is None else knobs.decay_steps
        num_falling = min(num_falling, decay_steps)
    progress = min(1.0, max(0, step - (total - num_falling)) / max(1, num_falling))
    match knobs.schedule:
        case "constant":
            return lr
        case "linear" | "wsd":
            return lr * (1 - (1 - final_lr) * progress)
        case "cosine":
            return lr * (final_lr + (1 - final_lr) * (1 + math.cos(math.pi * progress)) / 2)


def adamw(model: Iterable[nn.Parameter], heads: Iterable[nn.Parameter], knobs: Knobs) -> torch.optim.AdamW:
    """Fused AdamW: faster than the default (0.4 against 0.8 ms for a small model on CPU), and bit-stable.

    Each parameter group has its learning rate as `lr` and, for schedules, as `peak`. The state exists from the start,
    so that checkpoints of all steps contain the same tensors.
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
    """Set the number of steps that the averages contain, by which AdamW corrects their bias."""
    for state in optimiser.state.values():
        state["step"].fill_(steps)


def forget(optimiser: torch.optim.AdamW) -> None:
    """Reset the averages; learning rates stay as they are."""
    set_steps(optimiser, 0)
    for state in optimiser.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], max_norm: float, *, scale: float = 1.0) -> float:
    """Scale gradients to a global L2 norm of at most `max_norm` (0: no limit), unless it is not finite. Returns the
    norm before clipping, over all ranks. scale: factor of the loss, by which gradients and norm are divided.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    value = float(full(torch.nn.utils.get_total_norm(gradients))) / scale
    factor = (max_norm / value if 0 < max_norm < value else 1.0) / scale
    if math.isfinite(value) and factor != 1:
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)  # pyright: ignore[reportPrivateImportUsage]
    return value
