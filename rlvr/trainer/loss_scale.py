"""Loss scaling for float16, in which numbers below 6e-8 are 0: the loss is multiplied by a factor before the backward
pass, and the gradient of the weights divided by it afterwards (arXiv:1710.03740, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Powers of 2, so that scaling rounds nothing. FIRST and PATIENCE are those of torch.amp.GradScaler.
FIRST = 2.0**16
SMALLEST = 2.0**-8  # if a gradient is not finite at this scale, overflow is not the reason
PATIENCE = 2000  # finite updates in a row, after which the scale doubles


@dataclass
class LossScale:
    """The factor of the loss, the same on every rank: it depends only on whether the global gradient is finite."""

    dynamic: bool
    value: float = 1.0
    finite: int = 0  # updates in a row without overflow, since `value` last changed

    @classmethod
    def of(cls, dtype: torch.dtype) -> LossScale:
        """dtype: of forward and backward passes. Only float16 has too few exponents; else the scale is 1."""
        return cls(dynamic=True, value=FIRST) if dtype == torch.float16 else cls(dynamic=False)

    @property
    def can_fall(self) -> bool:
        return self.dynamic and self.value > SMALLEST

    def follow(self, *, finite: bool) -> None:
        """Halve the scale after a gradient that was not finite, double it after PATIENCE finite ones in a row."""
        if not self.dynamic:
            return
        self.finite = self.finite + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.finite == PATIENCE:
            self.value, self.finite = self.value * 2, 0

    def metrics(self, *, finite: bool) -> dict[str, float]:
        """Metrics of an update with this scale; none if it is not dynamic."""
        return {"optim/loss_scale": self.value, "optim/skipped": float(not finite)} if self.dynamic else {}

    @property
    def state(self) -> dict[str, Any]:
        """JSON, for a checkpoint."""
        return {"value": self.value, "finite": self.finite}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.value, self.finite = state["value"], state["finite"]
