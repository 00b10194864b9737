"""The policy in training goes into the engine: once per update, and only when something is sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rlvr.job import canary
from rlvr.records import Problem
from rlvr.rollout.sampler import Sampler
from rlvr.trainer.fsdp import Trainer


class Handover:
    """Knows which weights the engine has. Every method is called by all ranks."""

    def __init__(self, sampler: Sampler, trainer: Trainer, problems: Sequence[Problem]) -> None:
        """problems: of which the canary asks both of them."""
        self.sampler, self.trainer, self.problems = sampler, trainer, problems
        self.seconds = 0.0  # spent in `__call__` and `sleep`, all in all
        self.weights_s = 0.0  # that the engine's newest weights took to get there
        self.updates: int | None = None  # behind the engine's weights; None: it must be given some

    def __call__(self) -> int:
        """Give the engine the newest weights, if it has others. Returns how many updates are behind them.

        Raises EngineDisagrees if it does not sample from them.
        """
        began = time.perf_counter()
        newest = self.trainer.num_updates
        if self.updates != newest:  # else an evaluation has just been given these very weights
            self.sampler.engine.sync(self.trainer.weights())
            self.weights_s = time.perf_counter() - began
            temperature = self.trainer.knobs.temperature
            canary.compare(self.sampler, self.trainer.logp, self.problems, self.trainer.place, temperature)
            if self.trainer.place.device.type == "cuda":
                torch.cuda.empty_cache()  # what the canary took is the engine's to sample with
            self.updates = newest
        self.seconds += time.perf_counter() - began
        return newest

    def sleep(self) -> None:
        """Let the engine make room for training: it must be given weights before it samples again."""
        began = time.perf_counter()
        self.sampler.engine.sleep()
        self.seconds += time.perf_counter() - began
        self.updates = None
