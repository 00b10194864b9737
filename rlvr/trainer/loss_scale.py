"""Loss scaling for float16, where a number below 6e-8 is 0: the loss is multiplied before the backward pass and the
gradient of the weights divided after it (arXiv:1710.03740, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Powers of 2, so that scaling rounds nothing; the first, and how often it doubles, are those of torch.amp.GradScaler.
FIRST = 2.0**16
SMALLEST = 2.0**-8  # a gradient that is not finite here is so for another reason
PATIENCE = 2000  # finite updates in a row, after which it doubles


@dataclass
class LossScale:
    """The factor of the loss. Every rank has the same: it follows the norm of the gradient, which all ranks know."""

    dynamic: bool
    value: float = 1.0
    finite: int = 0  # updates in a row without overflow, since it last changed

    @classmethod
    def of(cls, dtype: torch.dtype) -> LossScale:
        """dtype: of forward and backward passes. Only float16 has too few exponents; else it stays 1."""
        return cls(dynamic=True, value=FIRST) if dtype == torch.float16 else cls(dynamic=False)

    @property
    def can_fall(self) -> bool:
        return self.dynamic and self.value > SMALLEST

    def follow(self, *, finite: bool) -> None:
        """Halve after a gradient that was not finite, double after PATIENCE that were."""
        if not self.dynamic:
            return
        self.finite = self.finite + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.finite == PATIENCE:
            self.value, self.finite = self.value * 2, 0

    def metrics(self, *, finite: bool) -> dict[str, float]:
        """Of an update that was made with it."""
        return {"optim/loss_scale": self.value, "optim/skipped": float(not finite)} if self.dynamic else {}

    @property
    def state(self) -> dict[str, Any]:
        """JSON, for a checkpoint."""
        return {"value": self.value, "finite": self.finite}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.value, self.finite = state["value"], state["finite"]
