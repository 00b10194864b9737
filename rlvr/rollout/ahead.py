"""The groups of each training step: sampled when the step wants them, or one step ahead (`rollout.ahead=1`).

One step ahead, a thread samples the groups of step t + 1 from the policy that step t starts from, while step t is
learned. So a step learns from samples of the policy one step before, never of an older one: the engine takes no weights
while it samples, and groups are asked for once those before are taken. A run computes the same whichever is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlvr.ledger.files import sync
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.records import Rollout, Sampling
from rlvr.rollout.collect import Sampler, Stream, collect

FILE = "ahead.parquet"  # of a checkpoint: groups that the step after it learns from


@dataclass(frozen=True)
class Collected:
    """The groups of one training step."""

    step: int
    updates: int  # behind the policy that they were sampled from
    groups: list[Rollout]
    metrics: dict[str, float]  # of all that was sampled for them, and what it cost

    def write(self, directory: Path) -> None:
        """Keep the groups on disk."""
        write_rollouts(self.groups, directory / FILE)
        sync(directory / FILE)

    @property
    def rest(self) -> dict[str, Any]:
        """JSON: what `read` wants beside the file."""
        return {"step": self.step, "updates": self.updates, "metrics": self.metrics}

    @classmethod
    def read(cls, directory: Path, rest: dict[str, Any]) -> Collected:
        """Of the problems only id and source come back: their answers have been judged."""
        return cls(groups=read_rollouts(directory / FILE), **rest)


class Collector:
    """Gives every step its groups. Each method is called by all ranks, in the same order."""

    def __init__(
        self, sampler: Sampler, stream: Stream, config: DictConfig, *, max_tokens: int, sync: Callable[[], int]
    ) -> None:
        """config: of a run. sync: gives the engine the newest weights; how many updates are behind them.

        With rollout.ahead the sampler gathers while the policy is trained: over a process group of its own.
        """
        rollout = config.rollout
        self.steps, self._sync = config.steps, sync
        self.ahead = bool(rollout.ahead)
        self._sampling = Sampling(max_tokens, config.seed, 0, rollout.temperature, rollout.top_p)
        self._collect = partial(
            collect,
            sampler,
            stream,
            prompts=rollout.prompts,
            samples=rollout.samples,
            filter=rollout.filter,
            dynamic=rollout.dynamic_sampling,
            max_rounds=rollout.max_rounds,
        )
        self._thread = ThreadPoolExecutor(1, "rollouts")
        self._asked: Future[Collected] | None = None

    def next(self, step: int) -> Collected:
        """The groups of a step: those that were asked for, or else sampled now. Raises what went wrong with them."""
        began = time.perf_counter()
        collected, self._asked = self.asked() or self.collect(step), None
        assert collected.step == step
        return replace(collected, metrics=collected.metrics | {"time/wait_s": time.perf_counter() - began})

    def collect(self, step: int) -> Collected:
        """Sample now, from the policy as it stands."""
        return self._sample(step, self._sync())

    def ask(self, step: int) -> bool:
        """If this run samples ahead and there is such a step: sample from the policy as it stands, beside other work.

        The engine and the stream are not to be touched until `wait` returns.
        """
        if not self.ahead or step > self.steps:
            return False
        self._asked = self._thread.submit(self._sample, step, self._sync())
        return True

    def _sample(self, step: int, updates: int) -> Collected:
        groups, spent = self._collect(replace(self._sampling, step=step))
        return Collected(step, updates, groups, spent.metrics())

    def wait(self) -> None:
        """Until nothing is being sampled. What failed is raised by whoever wants the groups."""
        if self._asked is not None:
            wait([self._asked])

    def asked(self) -> Collected | None:
        """What was asked for and not taken, once it is there. Raises what went wrong with it."""
        return None if self._asked is None else self._asked.result()

    def restore(self, collected: Collected | None) -> None:
        """Go on with what was asked for before a checkpoint."""
        if collected is not None:
            self._asked = Future()
            self._asked.set_result(collected)

    def close(self) -> None:
        self._thread.shutdown()
