"""What a loss sees: `Batch` and `Policy` go in, `Terms` come out. Shapes are checked once, here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B = P·G sampled responses in whole groups, right-padded to T tokens."""

    tokens: Tensor  # [B, T] int64
    mask: Tensor  # [B, T] bool, response tokens
    logp_old: Tensor  # [B, T] nats, policy that sampled
    advantage: Tensor  # [B] or [B, T]
    reward: Tensor  # [B]
    group: Tensor  # [B] int64, row of `prompt` that each response answers; non-decreasing
    prompt: Tensor  # [P, L] int64, left-padded
    prompt_mask: Tensor  # [P, L] bool
    logp_ref: Tensor | None = None  # [B, T] nats, frozen reference policy
    kind: Tensor | None = None  # [B] int64, stream of each row

    def __post_init__(self) -> None:
        B, T = self.tokens.shape
        P, L = self.prompt.shape
        expected = {
            "mask": (B, T), "logp_old": (B, T), "logp_ref": (B, T), "reward": (B,), "group": (B,), "kind": (B,),
            "prompt_mask": (P, L),
        }  # fmt: skip
        for name, shape in expected.items():
            value: Tensor | None = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"Batch.{name} has shape {list(value.shape)}, expected {list(shape)}")
        if tuple(self.advantage.shape) not in {(B,), (B, T)}:
            raise ValueError(f"Batch.advantage has shape {list(self.advantage.shape)}, expected [{B}] or [{B}, {T}]")
        if B and (bool((self.group.diff() < 0).any()) or int(self.group.min()) < 0 or int(self.group.max()) >= P):
            raise ValueError("Batch.group must be non-decreasing row numbers of Batch.prompt: groups stay whole")

    @property
    def num_groups(self) -> int:
        return self.prompt.shape[0]

    def select(self, groups: Tensor) -> Batch:
        """The sub-batch of the given groups ([P'] row numbers of `prompt`, ascending), renumbered from 0."""
        rows = torch.isin(self.group, groups)
        picked = {name: getattr(self, name) for name in (f.name for f in fields(self))}
        picked = {k: v if v is None else v[groups if k.startswith("prompt") else rows] for k, v in picked.items()}
        picked["group"] = torch.searchsorted(groups, picked["group"])
        return Batch(**picked)

    def to(self, device: torch.device) -> Batch:
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v if v is None else v.to(device) for k, v in moved.items()})


@dataclass(frozen=True)
class Policy:
    """What the policy in training says about a `Batch`. Fields a loss did not ask for with `@needs` are None."""

    logp: Tensor  # [B, T] nats, with gradient
    entropy: Tensor | None = None  # [B, T] nats, with gradient
    value: Tensor | None = None  # [B, T]
    log_z: Tensor | None = None  # [B]


@dataclass(frozen=True)
class Terms:
    """Unreduced loss and metrics, each [B, T] per token or [B] per sequence."""

    loss: Tensor  # its gradient is exact even where its value is clamped
    metrics: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


Loss = Callable[[Policy, Batch], Terms]
Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Advantage = Callable[[Tensor, Tensor], Tensor]

F = TypeVar("F", bound=Callable[..., object])


def needs(*what: str) -> Callable[[F], F]:
    """Declare what a loss reads beyond log-probs: "entropy", "value", "log_z", "reference", "minibatch".

    The trainer computes nothing else. "minibatch" means: statistics of the whole optimiser mini-batch, never of a part.
    """

    def mark(function: F) -> F:
        function.needs = frozenset(what)  # type: ignore[attr-defined]
        return function

    return mark
