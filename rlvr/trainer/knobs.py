"""What a trainer is given beside its model and its loss: the place where it runs, and its knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Place:
    """This process among those of its run, and what the run's model and task allow."""

    device: torch.device
    rank: int
    world: int  # processes of the run
    pad_token_id: int
    max_tokens: int  # of the longest response


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """`conf/trainer/fsdp.yaml` says what they mean, and has their defaults."""

    seed: int
    steps: int
    temperature: float
    updates: int
    epochs: int
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
    lr: float
    head_lr: float | None
    schedule: Literal["constant", "cosine", "linear", "wsd"]
    warmup_steps: int
    decay_steps: int | None
    final_lr: float
    clip_norm: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    kl: float
    kl_estimator: Literal["k1", "k2", "k3"]
    base_kl: bool
    reference_every: int | None
    reference_resets_optimiser: bool
    entropy: float
    dtype: Literal["float32", "bfloat16"]
    token_budget: int
    packing: bool
    shared_prompt: Literal["auto", "always", "never"]
    activation_checkpointing: bool
    compile: bool
    reference_offload: bool
    lora_rank: int | None
    lora_alpha: float

    @property
    def total_updates(self) -> int:
        """Optimiser steps of the whole run: the length of the schedule."""
        return self.steps * self.epochs * self.updates

    @property
    def precision(self) -> torch.dtype:
        """What forward and backward passes compute in."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]
