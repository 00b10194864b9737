"""The groups of each training step, sampled up to N steps ahead by an engine that takes new weights amid its requests
(`rollout.ahead=N`, N ≥ 2; as PipelineRL, arXiv:2509.19128, has it).

Groups are drawn from the stream one after the other, without rounds: a step learns from the next P usable ones in the
order drawn, so the problems of the steps follow one another in the stream whatever is sampled faster.

Bound: no token that step t learns from was drawn by a policy with fewer than t − 1 − N steps of training behind it, and
step t starts from the one with t − 1. A group is begun only if this holds for the latest step that may get it: the one
that does if all groups before it, unless known to be unusable, are usable. The trainer waits for groups, the sampler
for weights.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from rlvr.records import Completion, Problem, Request, Rollout, Sampling, StreamingEngine
from rlvr.rollout.judging import Judging
from rlvr.rollout.sampler import Sampler, Spent, noise_key
from rlvr.rollout.selection import Selection
from rlvr.rollout.spurious import trained_on
from rlvr.rollout.step_sampler import StepGroups
from rlvr.rollout.stream import Stream

LOOK_S = 0.05  # how often the trainer looks whether its groups are there
WAIT_S = 0.5  # of an engine that may begin nothing


class Weights(NamedTuple):
    """How old they are."""

    steps: int  # of training behind them
    updates: int  # of the optimiser


class Begun(NamedTuple):
    """A group that runs."""

    problem: Problem
    prompt: NDArray[np.int64]
    version: int  # of the weights then
    at_s: float


class Sampled(NamedTuple):
    """A group of this rank, judged."""

    group: Rollout
    begun: Begun
    version: int  # of the weights when its last response ended
    ended_s: float


class InFlightSampler:
    """Gives every step its groups, as StepSampler does: all ranks call what the trainer calls, in the same order. The
    engine calls it as its Supply, from other threads.
    """

    def __init__(
        self, sampler: Sampler, stream: Stream, config: DictConfig, *, max_tokens: int, hand_over: Callable[[], int]
    ) -> None:
        """As of StepSampler. Raises ValueError for an engine that cannot take weights while it samples."""
        rollout = config.rollout
        if not isinstance(sampler.engine, StreamingEngine):
            raise ValueError(
                f"rollout.ahead={rollout.ahead} gives the engine weights while it samples, which this one cannot take. "
                "Pass rollout=ray, or rollout.ahead=1."
            )
        self.sampler, self.engine, self.stream = sampler, sampler.engine, stream
        self.ahead, self.last_step = int(rollout.ahead), int(config.steps)
        self.share = 1.0  # nothing is drawn in rounds
        self._selection = Selection.of(rollout)
        self._hand_over = hand_over
        self._sampling = Sampling(max_tokens, config.seed, 0, rollout.temperature, rollout.top_p)
        self._changed = threading.Condition(threading.RLock())
        self._learned = self._taken = 0  # the last step that the trainer has learned, and that it was given groups of
        self._weights: dict[int, Weights] = {}  # of each version of the engine's
        # Groups are numbered in the order drawn, over all engines: the e-th of E has e, e + E, ...
        self._origin: int | None = None  # position of group 0 in the stream
        self._boundary = 0  # the first group that no step has
        self._problems: list[Problem] = []  # of the groups from the boundary on
        self._next = sampler.number or 0  # of this rank's engine, to be begun
        self._begun: dict[int, Begun] = {}
        self._own: dict[int, Sampled] = {}
        self._received = list(range(sampler.engines))  # the next group of each engine that is to be known to all
        self._groups: dict[int, Rollout] = {}  # known to all
        self._unusable = set[int]()  # known to this rank
        self._judged_s = self._ended_s = 0.0  # of judging since the last step; when that step's last response ended
        self._judging = Judging(self._judge)
        self._thread, self._closed = ThreadPoolExecutor(1, "rollouts"), False
        self._streaming: Future[None] | None = None  # None: not yet

    # --- for the trainer ---

    @property
    def position(self) -> int:
        """Of the first problem that no step was given: what is in preparation will be drawn again."""
        return self.stream.position if self._origin is None else self._origin + self._boundary

    def sync(self) -> int:
        """Give the engine the newest weights, while it samples. Returns how many updates are behind them."""
        coming = self.engine.version + 1  # some requests begin with them before all workers have them
        self._weights[coming] = Weights(self._learned, -1)
        updates = self._hand_over()
        if self.engine.version != coming:  # it had them
            del self._weights[coming]
        with self._changed:
            self._weights[self.engine.version] = Weights(self._learned, updates)
            self._changed.notify_all()
        return updates

    def take(self, step: int) -> StepGroups:
        """The groups of a step, once they are there. Raises what went wrong in sampling or judging."""
        began = time.perf_counter()
        if self._streaming is None:
            self._begin(step)
        while (end := self._end_of_step()) is None:
            with self._changed:
                self._changed.wait(LOOK_S)
            self._exchange()
        groups = self._up_to(end, step)
        return replace(groups, metrics=groups.metrics | {"time/wait_s": time.perf_counter() - began})

    def prefetch(self, step: int) -> bool:
        """It goes on by itself, if there is such a step."""
        return step <= self.last_step

    def learned(self, step: int) -> None:
        """After each update: sync the engine, which samples from the newest policy from now on."""
        self._learned = step
        if step < self.last_step:
            self.sync()

    def prefetched(self) -> None:
        """Nothing of what is in preparation is kept."""

    def restore(self, groups: StepGroups | None) -> None:
        assert groups is None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.shutdown()
        self._judging.close()

    def _begin(self, step: int) -> None:
        self._learned = self._taken = step - 1
        self._origin = self.stream.position
        self.sync()
        self._streaming = self._thread.submit(self.engine.generate_stream, self)

    def _end_of_step(self) -> int | None:
        """The group that the next step ends before; None: it is not known yet."""
        kept, limit = 0, self._boundary + self._selection.most
        for number in range(self._boundary, limit):
            if number not in self._groups:
                return None
            kept += number not in self._unusable
            if kept == self._selection.prompts:
                return number + 1
        return limit

    def _exchange(self) -> None:
        """Let all ranks have the groups that were judged, those of each engine in order."""
        mine, number = list[Rollout](), self._received[self.sampler.number or 0]
        with self._changed:
            if failure := self._failure():
                raise failure
            while number in self._own:
                own = self._own[number]
                updates = self._weights[own.begun.version].updates, self._weights[own.version].updates
                mine.append(replace(own.group, updates=updates))
                number += self.sampler.engines
        per_engine = self.sampler.gather_engines(mine)
        with self._changed:
            for engine, groups in enumerate(per_engine):
                for group in groups:
                    number = self._received[engine]
                    self._received[engine] += self.sampler.engines
                    # What comes from other ranks has no text of its problem, which all of them know.
                    self._groups[number] = replace(group, problem=self._problem(number))
                    self._note_usable(number, group)

    def _up_to(self, end: int, step: int) -> StepGroups:
        """The groups up to one are the step's."""
        with self._changed:
            numbers = range(self._boundary, end)
            groups = {number: self._groups.pop(number) for number in numbers}
            own = [self._own.pop(number) for number in numbers if number in self._own]
            kept = [
                learned
                for number in numbers
                if number not in self._unusable
                for learned in trained_on([groups[number]], self._selection.reward, self._named(number))
            ]
            spent = self._spent(list(groups.values()), own)
            self._unusable -= set(numbers)
            del self._problems[: len(numbers)]
            self._boundary, self._taken = end, step
            self._changed.notify_all()
        oldest = min((self._weights[each.begun.version].steps for each in own), default=step - 1)
        if step - 1 - oldest > self.ahead:
            raise RuntimeError(f"step {step} would learn from the policy after {oldest} steps: {self.ahead=}")
        updates = min(group.updates[0] for group in kept or groups.values() if group.updates)
        return StepGroups(step, updates, kept, spent.metrics(), right=spent.right)

    def _spent(self, groups: list[Rollout], own: list[Sampled]) -> Spent:
        """Of sampling, the seconds that this step has added to those before it."""
        ended = max((each.ended_s for each in own), default=self._ended_s)
        began = min((each.begun.at_s for each in own), default=ended)
        spent = Spent()
        spent.add(groups, rollout_s=max(0.0, ended - max(began, self._ended_s)), reward_s=self._judged_s)
        self._ended_s, self._judged_s = max(ended, self._ended_s), 0.0
        return spent

    # --- for the engine ---

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        """Groups of this rank to begin, of about so many responses, as far as the bound allows."""
        samples, numbers = self._selection.samples, list[int]()
        with self._changed:
            while len(numbers) * samples < most and self._may_begin(self._next, self._weights[version].steps):
                numbers.append(self._next)
                self._next += self.sampler.engines
            problems = [self._problem(number) for number in numbers]
        prompts = self.sampler.encode(problems) if problems else []
        for number, problem, prompt in zip(numbers, problems, prompts, strict=True):
            self._begun[number] = Begun(problem, prompt, version, time.perf_counter())
        return [
            (number, Request(prompt, samples, noise_key(problem)), self._named(number))
            for number, problem, prompt in zip(numbers, problems, prompts, strict=True)
        ]

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        """To be judged, in a thread of its own."""
        self._judging.put((row, samples, version))

    def wait(self) -> None:
        with self._changed:
            self._changed.wait(WAIT_S)

    @property
    def enough(self) -> bool:
        with self._changed:
            return self._closed or self._failure() is not None or self._taken == self.last_step

    def _may_begin(self, number: int, steps: int) -> bool:
        """Whether weights with so many steps of training behind them may sample this group: for any step that could get
        it, they are not too old."""
        step = self._latest_step_of(number)
        return step <= self.last_step and step - 1 - steps <= self.ahead

    def _latest_step_of(self, number: int) -> int:
        """The step that gets a group if all before it, unless known to be unusable, are usable."""
        step, first, kept = self._taken + 1, self._boundary, 0
        for each in range(first, number):
            kept += each not in self._unusable
            if kept == self._selection.prompts or each + 1 - first == self._selection.most:
                step, first, kept = step + 1, each + 1, 0
        return step

    # --- of both ---

    def _problem(self, number: int) -> Problem:
        while len(self._problems) <= number - self._boundary:
            self._problems += self.stream.draw(1)
        return self._problems[number - self._boundary]

    def _named(self, number: int) -> Sampling:
        """Noise goes by the group's place in the stream: which step will get it is not known."""
        assert self._origin is not None
        return replace(self._sampling, step=self._origin + number)

    def _note_usable(self, number: int, group: Rollout) -> None:
        if not self._selection.usable(group, self._named(number)):
            self._unusable.add(number)

    def _judge(self, sampled: list[tuple[int, tuple[Completion, ...], int]]) -> None:
        began = time.perf_counter()
        begun = [self._begun.pop(number) for number, *_ in sampled]
        completions = [samples for _, samples, _ in sampled]
        groups = self.sampler.judge([b.problem for b in begun], [b.prompt for b in begun], completions)
        with self._changed:
            for (number, _, version), each, group in zip(sampled, begun, groups, strict=True):
                self._own[number] = Sampled(group, each, version, began)
                self._note_usable(number, group)
            self._judged_s += time.perf_counter() - began
            self._changed.notify_all()

    def _failure(self) -> BaseException | None:
        """Of sampling or judging, if it failed."""
        if self._streaming is not None and self._streaming.done() and (failure := self._streaming.exception()):
            return failure
        return self._judging.failure
