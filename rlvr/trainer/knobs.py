"""Arguments of a trainer beside its model and its loss: the place where it runs, and its knobs."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

Count = Annotated[int, Ge(1)]
Decay = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True)
class Place:
    """The device of this process, and limits from the run's model and task."""

    device: torch.device
    pad_token_id: int
    max_tokens: int  # of the longest response
    shard_over: Literal["job", "node"] = "job"  # the ranks over which weights are sharded: all, or those of each node


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """The knobs of the trainer; `conf/trainer/fsdp.yaml` explains them and has their defaults."""

    seed: NonNegativeInt
    steps: Count
    temperature: PositiveFloat
    updates: Count
    epochs: Count
    aggregation: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"
    ]
    lr: NonNegativeFloat  # 0: nothing is learned, a control
    head_lr: PositiveFloat | None
    critic: Literal["own"] | None
    schedule: Literal["constant", "cosine", "linear", "wsd"]
    warmup_steps: NonNegativeInt
    decay_steps: Count | None
    final_lr: Annotated[float, Interval(ge=0, le=1), "a share of lr"]
    clip_norm: NonNegativeFloat
    betas: tuple[Decay, Decay]
    eps: PositiveFloat
    weight_decay: NonNegativeFloat
    kl: NonNegativeFloat
    kl_estimator: Literal["k1", "k2", "k3", "k3_ratio"]
    base_kl: bool
    reference_every: Count | None
    reference_resets_optimiser: bool
    entropy: float
    dtype: Literal["float32", "bfloat16", "float16"]
    token_budget: Count
    packing: bool
    shared_prompt: Literal["auto", "always", "never"]
    activation_checkpointing: bool
    compile: bool | Literal["auto"]
    reference_offload: bool
    lora_rank: Count | None
    lora_alpha: PositiveFloat

    @property
    def total_updates(self) -> int:
        """Optimiser steps of the whole run: the length of the schedule."""
        return self.steps * self.epochs * self.updates

    def compiles(self, device: torch.device, *, packed: bool) -> bool:
        """Whether layers are compiled. auto: on a GPU with packed sequences, where one graph serves every shape."""
        return device.type == "cuda" and packed if self.compile == "auto" else self.compile

    @property
    def precision(self) -> torch.dtype:
        """Data type of forward and backward passes."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[self.dtype]
