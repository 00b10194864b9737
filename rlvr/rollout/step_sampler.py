"""The groups of each training step: sampled when the step needs them, or one step ahead (`rollout.ahead=1`).

One step ahead, a thread samples the groups of step t + 1 from the policy that step t starts from, while step t is
learned. So a step learns from samples of the policy one step before, never of an older one: the engine takes no new
weights while it samples, and a step is prefetched once the groups of the step before are taken. What a run computes
does not depend on which of the two is faster.
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

FILE = "ahead.parquet"  # in a checkpoint: groups that the next step learns from


@dataclass(frozen=True)
class StepGroups:
    """The groups of one training step; no groups if the step has nothing to learn from."""

    step: int
    updates: int  # number of updates behind the policy that sampled the groups
    groups: list[Rollout]
    metrics: dict[str, float]  # over all that was sampled for the step, with its cost
    share: float = 1.0  # share of the problems drawn whose groups were kept: the next step draws by it
    right: bool = True  # whether any answer was right, even if its group was not kept

    def staleness(self, updates: int) -> dict[str, float]:
        """Mean and maximum, over responses, of the updates since their oldest weights; none without groups."""
        if not self.groups:
            return {}
        behind = list[float]()
        for group in self.groups:
            oldest = group.updates[0] if group.updates else self.updates
            behind += [float(updates - oldest)] * len(group.texts)
        return {"rollout/staleness": sum(behind) / len(behind), "rollout/staleness_max": max(behind)}

    def write(self, directory: Path) -> None:
        """Write the groups to disk, if there are any."""
        if self.groups:
            write_rollouts(self.groups, directory / FILE)
            sync(directory / FILE)

    @property
    def json_fields(self) -> dict[str, Any]:
        """JSON: the fields that `read` needs beside the file."""
        fields = {name: value for name, value in vars(self).items() if name != "groups"}
        return {**fields, "num_groups": len(self.groups)}

    @classmethod
    def read(cls, directory: Path, rest: dict[str, Any]) -> StepGroups:
        """The groups of a checkpoint. Of problems only id and source are restored: their answers have been judged."""
        fields = dict(rest)
        num_groups: int = fields.pop("num_groups")
        return cls(groups=read_rollouts(directory / FILE) if num_groups else [], **fields)


class StepSampler:
    """Provides the groups of every step. Each method is called by all ranks, in the same order."""

    def __init__(
        self, sampler: Sampler, stream: Stream, config: DictConfig, *, max_tokens: int, hand_over: Callable[[], int]
    ) -> None:
        """hand_over: gives the engine the newest weights and returns the number of updates behind them.

        With rollout.ahead the sampler gathers groups while the policy is trained: it needs a process group of its own.
        """
        rollout = config.rollout
        self.sampler, self.stream, self.last_step = sampler, stream, config.steps
        self.ahead = bool(rollout.ahead)
        self._hand_over = hand_over
        self._sampling = Sampling(max_tokens, config.seed, 0, rollout.temperature, rollout.top_p)
        self._selection = Selection.of(rollout, sampler.task)
        self.share = 1.0  # share of groups kept in the newest step that was sampled
        self._thread = ThreadPoolExecutor(1, "rollouts")
        self._prefetched: Future[StepGroups] | None = None

    def sync(self) -> int:
        """Give the engine the newest weights, once it samples no more. Returns the number of updates behind them.

        An error of the sampling thread is raised by `take`.
        """
        if self._prefetched is not None:
            wait([self._prefetched])
        return self._hand_over()

    def take(self, step: int) -> StepGroups:
        """The groups of a step: prefetched ones, or else groups sampled now from the current policy."""
        began = time.perf_counter()
        groups = self.prefetched() or self._sample(step, self.sync())
        self._prefetched = None
        assert groups.step == step
        return replace(groups, metrics=groups.metrics | {"time/wait_s": time.perf_counter() - began})

    def prefetch(self, step: int) -> bool:
        """If this run samples ahead and the step exists, start sampling for it from the current policy, in a thread.

        Returns whether it was; engine and stream may then not be used before `sync` or `prefetched` has returned.
        """
        if not self.ahead or step > self.last_step:
            return False
        self._prefetched = self._thread.submit(self._sample, step, self.sync())
        return True

    def prefetched(self) -> StepGroups | None:
        """The prefetched groups that were not taken, once they are complete. Raises the sampling thread's error."""
        return None if self._prefetched is None else self._prefetched.result()

    @property
    def position(self) -> int:
        """The position of the next problem in the stream."""
        return self.stream.position

    def learned(self, step: int) -> None:
        """Nothing to do: the engine is given the newest weights before it samples again."""

    def restore(self, groups: StepGroups | None) -> None:
        """Continue with the groups that were prefetched before a checkpoint."""
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
        dated = [replace(group, updates=(updates, updates)) for group in groups]
        return StepGroups(step, updates, dated, spent.metrics(), spent.share, spent.right)
