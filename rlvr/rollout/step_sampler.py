"""The groups of each training step: sampled when the step wants them, or one step ahead (`rollout.ahead=1`).

One step ahead, a thread samples the groups of step t + 1 from the policy that step t starts from, while step t is
learned. So a step learns from samples of the policy one step before, never of an older one: the engine takes no weights
while it samples, and a step is prefetched once the one before is taken. A run computes the same whichever is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlvr.ledger.files import sync
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.records import Rollout, Sampling
from rlvr.rollout.sampler import Sampler
from rlvr.rollout.selection import Selection, select_groups
from rlvr.rollout.stream import Stream

FILE = "ahead.parquet"  # of a checkpoint: groups that the step after it learns from


@dataclass(frozen=True)
class StepGroups:
    """The groups of one training step; none where it has nothing to learn from."""

    step: int
    updates: int  # behind the policy that they were sampled from
    groups: list[Rollout]
    metrics: dict[str, float]  # of all that was sampled for them, and what it cost
    share: float = 1.0  # of problems drawn, whose groups were kept: the next step draws by it
    right: bool = True  # some answer was, whether or not its group is here

    def staleness(self, updates: int) -> dict[str, float]:
        """Updates between the oldest weights that drew a token of a response, and those of a learner with so many
        behind it. Empty without groups."""
        if not self.groups:
            return {}
        behind = [float(updates - (group.updates or (self.updates,))[0]) for group in self.groups for _ in group.texts]
        return {"rollout/staleness": sum(behind) / len(behind), "rollout/staleness_max": max(behind)}

    def write(self, directory: Path) -> None:
        """Keep the groups on disk, if there are some."""
        if self.groups:
            write_rollouts(self.groups, directory / FILE)
            sync(directory / FILE)

    @property
    def rest(self) -> dict[str, Any]:
        """JSON: what `read` wants beside the file."""
        own = {name: value for name, value in vars(self).items() if name != "groups"}
        return {**own, "num_groups": len(self.groups)}

    @classmethod
    def read(cls, directory: Path, rest: dict[str, Any]) -> StepGroups:
        """Of the problems only id and source come back: their answers have been judged."""
        own = dict(rest)
        num_groups: int | None = own.pop("num_groups", None)  # older checkpoints do not say: they have some
        return cls(groups=[] if num_groups == 0 else read_rollouts(directory / FILE), **own)


class StepSampler:
    """Gives every step its groups. Each method is called by all ranks, in the same order."""

    def __init__(
        self, sampler: Sampler, stream: Stream, config: DictConfig, *, max_tokens: int, hand_over: Callable[[], int]
    ) -> None:
        """config: of a run. hand_over: gives the engine the newest weights; how many updates are behind them.

        With rollout.ahead the sampler gathers while the policy is trained: over a process group of its own.
        """
        rollout = config.rollout
        self.sampler, self.stream, self.last_step = sampler, stream, config.steps
        self.ahead = bool(rollout.ahead)
        self._hand_over = hand_over
        self._sampling = Sampling(max_tokens, config.seed, 0, rollout.temperature, rollout.top_p)
        self._selection = Selection.of(rollout)
        self.share = 1.0  # kept, of the problems drawn for the newest step that was sampled
        self._thread = ThreadPoolExecutor(1, "rollouts")
        self._prefetched: Future[StepGroups] | None = None

    def sync(self) -> int:
        """Give the engine the newest weights, once it samples no more. Returns how many updates are behind them.

        An error of the sampling thread is raised by `take`.
        """
        if self._prefetched is not None:
            wait([self._prefetched])
        return self._hand_over()

    def take(self, step: int) -> StepGroups:
        """The groups of a step: those that were prefetched, or else sampled now, from the policy as it stands."""
        began = time.perf_counter()
        groups = self.prefetched() or self._sample(step, self.sync())
        self._prefetched = None
        assert groups.step == step
        return replace(groups, metrics=groups.metrics | {"time/wait_s": time.perf_counter() - began})

    def prefetch(self, step: int) -> bool:
        """If this run samples ahead and there is such a step: sample from the policy as it stands, beside other work.

        Neither the engine nor the stream is to be touched before `sync` or `prefetched` has returned.
        """
        if not self.ahead or step > self.last_step:
            return False
        self._prefetched = self._thread.submit(self._sample, step, self.sync())
        return True

    def prefetched(self) -> StepGroups | None:
        """What was prefetched and not taken, once it is there. Raises what went wrong with it."""
        return None if self._prefetched is None else self._prefetched.result()

    @property
    def position(self) -> int:
        """Of the next problem of the stream."""
        return self.stream.position

    def learned(self, step: int) -> None:
        """The engine is given weights before it samples again."""

    def restore(self, groups: StepGroups | None) -> None:
        """Go on with what was prefetched before a checkpoint."""
        if groups is not None:
            self.share = groups.share
            self._prefetched = Future()
            self._prefetched.set_result(groups)

    def close(self) -> None:
        self._thread.shutdown()

    def _sample(self, step: int, updates: int) -> StepGroups:
        sampling = replace(self._sampling, step=step)
        groups, spent = select_groups(self.sampler, self.stream, sampling, self._selection, self.share)
        self.share = spent.share
        aged = [replace(group, updates=(updates, updates)) for group in groups]
        return StepGroups(step, updates, aged, spent.metrics(), spent.share, spent.right)
