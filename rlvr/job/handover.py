"""Copies the policy in training into the engine: at most once per update, and only before something is sampled."""

import time
from collections.abc import Sequence

import torch

from rlvr.job import canary
from rlvr.model.load import parse_dtype
from rlvr.records import Problem
from rlvr.rollout.sampler import Sampler
from rlvr.trainer.fsdp import Trainer


class Handover:
    """Gives the engine new weights, and keeps track of those it has. Every method is called by all ranks."""

    def __init__(self, sampler: Sampler, trainer: Trainer, problems: Sequence[Problem]) -> None:
        """problems: for the prompts on which the canary compares engine and trainer."""
        self.sampler, self.trainer, self.problems = sampler, trainer, problems
        self.seconds = 0.0  # total time spent in `__call__` and `sleep`
        self.weights_s = 0.0  # time in which the engine's newest weights were transferred
        self.updates: int | None = None  # number of updates that led to the engine's weights; None: it has no weights

    def __call__(self) -> int:
        """Give the engine the newest weights, unless it has them. Returns the number of updates that led to them.

        Raises EngineDisagrees if the engine does not sample from them.
        """
        began = time.perf_counter()
        newest = self.trainer.num_updates
        if self.updates != newest:  # equal if the engine got these weights for an evaluation
            self.sampler.engine.sync(self.trainer.weights(parse_dtype(self.sampler.engine.dtype)))
            self.weights_s = time.perf_counter() - began
            temperature = self.trainer.knobs.temperature
            canary.compare(self.sampler, self.trainer.logp, self.problems, self.trainer.place, temperature)
            if self.trainer.place.device.type == "cuda":
                torch.cuda.empty_cache()  # so that the engine can use the memory that the canary needed
            self.updates = newest
        self.seconds += time.perf_counter() - began
        return newest

    def sleep(self) -> None:
        """Let the engine free memory for training: it needs weights again before it samples."""
        began = time.perf_counter()
        self.sampler.engine.sleep()
        self.seconds += time.perf_counter() - began
        self.updates = None
