"""Sampling up to N steps ahead of training, with an engine that takes new weights while requests run
(`rollout.ahead=N`, N ≥ 2; as in PipelineRL, arXiv:2509.19128).

Groups are drawn from the stream one after the other, without rounds. A step learns from the next P usable ones in
the order drawn, so the problems of consecutive steps follow one another in the stream, whichever are sampled faster.

Bound: no token that step t learns from was drawn by a policy with fewer than t − 1 − N steps of training; step t
starts from the policy with t − 1. A group is begun only if this holds for the latest step that may get it. The trainer
waits for groups, the sampler for weights.
"""

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
from rlvr.rollout.judging_thread import JudgingThread
from rlvr.rollout.sampler import RolloutCost, Sampler, noise_key
from rlvr.rollout.selection import Selection
from rlvr.rollout.step_sampler import StepGroups
from rlvr.rollout.stream import Stream

POLL_S = 0.05  # how often the trainer checks whether its groups have arrived
WAIT_S = 0.5  # how long an engine waits that may not begin a group


class Weights(NamedTuple):
    """The age of one version of the weights."""

    steps: int  # of training before them
    updates: int  # of the optimiser before them


class RunningGroup(NamedTuple):
    """A group that is being sampled."""

    problem: Problem
    prompt: NDArray[np.int64]
    version: int  # of the weights when the group was begun
    begun_s: float


class JudgedGroup(NamedTuple):
    """A judged group of this rank."""

    group: Rollout
    running: RunningGroup
    version: int  # of the weights when its last response ended
    ended_s: float


class InFlightSampler:
    """Provides the groups of every step, as StepSampler does; and is the engine's Supply, called from other threads."""

    def __init__(
        self, sampler: Sampler, stream: Stream, config: DictConfig, *, max_tokens: int, hand_over: Callable[[], int]
    ) -> None:
        """As for StepSampler. Raises ValueError for an engine that cannot take weights while it samples."""
        rollout = config.rollout
        if not isinstance(sampler.engine, StreamingEngine):
            raise ValueError(
                f"rollout.ahead={rollout.ahead} gives the engine weights while it samples, which this one cannot take. "
                "Pass rollout=ray, or rollout.ahead=1."
            )
        self.sampler, self.engine, self.stream = sampler, sampler.engine, stream
        self.ahead, self.last_step = int(rollout.ahead), int(config.steps)
        self.share = 1.0  # nothing is drawn in rounds
        self._selection = Selection.of(rollout, sampler.task)
        self._hand_over = hand_over
        self._sampling = Sampling(max_tokens, config.seed, 0, rollout.temperature, rollout.top_p)
        self._changed = threading.Condition(threading.RLock())
        self._last_learned = 0  # the last step that the trainer has learned
        self._last_taken = 0  # the last step whose groups were taken
        self._weights: dict[int, Weights] = {}  # by the engine's version
        # Groups are numbered in the order drawn, over all engines: engine e of E has e, e + E, ...
        self._origin: int | None = None  # position of group 0 in the stream; None until sampling begins
        self._boundary = 0  # the first group that no step has taken
        self._problems: list[Problem] = []  # of the groups from the boundary on
        self._next_group = sampler.engine_number or 0  # the next group that this rank's engine begins
        self._running: dict[int, RunningGroup] = {}
        self._judged_groups: dict[int, JudgedGroup] = {}
        self._next_received = list(range(sampler.engines))  # by engine: the first group not yet exchanged
        self._groups: dict[int, Rollout] = {}  # exchanged: on all ranks
        self._unusable = set[int]()  # as far as this rank knows
        self._judging_s = 0.0  # seconds of judging since the last step
        self._ended_s = 0.0  # when the last response of that step ended
        self._judging_thread = JudgingThread(self._judge)
        self._thread, self._closed = ThreadPoolExecutor(1, "rollouts"), False
        self._streaming: Future[None] | None = None  # None until sampling begins

    # --- for the trainer ---

    @property
    def position(self) -> int:
        """Position of the first problem that no step has taken: what is in preparation is drawn again if resumed."""
        return self.stream.position if self._origin is None else self._origin + self._boundary

    def sync(self) -> int:
        """Give the engine the newest weights, while it samples. Returns the number of updates behind them."""
        coming = self.engine.version + 1  # some requests begin with these weights before all workers have them
        self._weights[coming] = Weights(self._last_learned, -1)
        updates = self._hand_over()
        if self.engine.version != coming:  # the engine had these weights already
            del self._weights[coming]
        with self._changed:
            self._weights[self.engine.version] = Weights(self._last_learned, updates)
            self._changed.notify_all()
        return updates

    def take(self, step: int) -> StepGroups:
        """The groups of a step, once they have arrived. Raises the error of sampling or judging, if any."""
        began = time.perf_counter()
        if self._streaming is None:
            self._start_sampling(step)
        while (end := self._end_of_step()) is None:
            with self._changed:
                self._changed.wait(POLL_S)
            self._exchange_groups()
        groups = self._take_up_to(end, step)
        return replace(groups, metrics=groups.metrics | {"time/wait_s": time.perf_counter() - began})

    def prefetch(self, step: int) -> bool:
        """Whether the step exists; sampling ahead needs no call."""
        return step <= self.last_step

    def learned(self, step: int) -> None:
        """After a step: sync the engine, which samples from the newest policy from now on."""
        self._last_learned = step
        if step < self.last_step:
            self.sync()

    def prefetched(self) -> None:
        """Always None: groups in preparation are not written to checkpoints."""

    def restore(self, groups: StepGroups | None) -> None:
        assert groups is None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.shutdown()
        self._judging_thread.close()

    def _start_sampling(self, step: int) -> None:
        self._last_learned = self._last_taken = step - 1
        self._origin = self.stream.position
        self.sync()
        self._streaming = self._thread.submit(self.engine.generate_stream, self)

    def _end_of_step(self) -> int | None:
        """Number of the group before which the next step's groups end; None if it is not known yet."""
        num_usable, limit = 0, self._boundary + self._selection.max_groups
        for number in range(self._boundary, limit):
            if number not in self._groups:
                return None
            num_usable += number not in self._unusable
            if num_usable == self._selection.prompts:
                return number + 1
        return limit

    def _exchange_groups(self) -> None:
        mine, number = list[Rollout](), self._next_received[self.sampler.engine_number or 0]
        with self._changed:
            failure = self._failure()
            if failure is not None:
                raise failure
            while number in self._judged_groups:
                judged = self._judged_groups[number]
                oldest, newest = self._weights[judged.running.version], self._weights[judged.version]
                mine.append(replace(judged.group, updates=(oldest.updates, newest.updates)))
                number += self.sampler.engines
        per_engine = self.sampler.gather_engines(mine)
        with self._changed:
            for engine, groups in enumerate(per_engine):
                for group in groups:
                    number = self._next_received[engine]
                    self._next_received[engine] += self.sampler.engines
                    # Groups of other ranks come without the text of their problem, which every rank knows.
                    self._groups[number] = replace(group, problem=self._problem(number))
                    self._note_usable(number, group)

    def _take_up_to(self, end: int, step: int) -> StepGroups:
        with self._changed:
            numbers = range(self._boundary, end)
            groups = {number: self._groups.pop(number) for number in numbers}
            judged = [self._judged_groups.pop(number) for number in numbers if number in self._judged_groups]
            kept = [
                learned
                for number in numbers
                if number not in self._unusable
                for learned in self._selection.learned([groups[number]], self._sampling_of(number))
            ]
            spent = self._spent(list(groups.values()), judged)
            self._unusable -= set(numbers)
            del self._problems[: len(numbers)]
            self._boundary, self._last_taken = end, step
            self._changed.notify_all()
        oldest = min((self._weights[group.running.version].steps for group in judged), default=step - 1)
        if step - 1 - oldest > self.ahead:
            raise RuntimeError(f"step {step} would learn from the policy after {oldest} steps: {self.ahead=}")
        updates = min(group.updates[0] for group in kept or groups.values() if group.updates)
        return StepGroups(step, updates, kept, spent.metrics(), right=spent.right)

    def _spent(self, groups: list[Rollout], judged: list[JudgedGroup]) -> RolloutCost:
        """The cost of a step's groups. Its seconds of sampling are those that the earlier steps have not counted."""
        ended = max((group.ended_s for group in judged), default=self._ended_s)
        began = min((group.running.begun_s for group in judged), default=ended)
        spent = RolloutCost()
        spent.add(groups, rollout_s=max(0.0, ended - max(began, self._ended_s)), reward_s=self._judging_s)
        self._ended_s, self._judging_s = max(ended, self._ended_s), 0.0
        return spent

    # --- for the engine ---

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        """Groups that this rank may begin, of about `most` responses in total, as far as the bound allows."""
        samples, numbers = self._selection.samples, list[int]()
        with self._changed:
            while len(numbers) * samples < most and self._may_begin(self._next_group, self._weights[version].steps):
                numbers.append(self._next_group)
                self._next_group += self.sampler.engines
            problems = [self._problem(number) for number in numbers]
        prompts = self.sampler.encode(problems) if problems else []
        for number, problem, prompt in zip(numbers, problems, prompts, strict=True):
            self._running[number] = RunningGroup(problem, prompt, version, time.perf_counter())
        return [
            (number, Request(prompt, samples, noise_key(problem)), self._sampling_of(number))
            for number, problem, prompt in zip(numbers, problems, prompts, strict=True)
        ]

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        """Queue the samples of a group for the judging thread."""
        self._judging_thread.put((row, samples, version))

    def wait(self) -> None:
        with self._changed:
            self._changed.wait(WAIT_S)

    @property
    def most_running(self) -> int:
        """Samples of this rank's groups of all steps that the bound allows to be in preparation."""
        groups = (self.ahead + 1) * self._selection.prompts
        return -(-groups // self.sampler.engines) * self._selection.samples

    @property
    def enough(self) -> bool:
        with self._changed:
            return self._closed or self._failure() is not None or self._last_taken == self.last_step

    def _may_begin(self, number: int, steps: int) -> bool:
        """Whether weights with `steps` steps of training are not too old for any step that may get this group."""
        step = self._latest_step_of(number)
        return step <= self.last_step and step - 1 - steps <= self.ahead

    def _latest_step_of(self, number: int) -> int:
        """The step that gets the group if all groups before it are usable, except those known to be unusable."""
        step, first, num_usable = self._last_taken + 1, self._boundary, 0
        for earlier in range(first, number):
            num_usable += earlier not in self._unusable
            if num_usable == self._selection.prompts or earlier + 1 - first == self._selection.max_groups:
                step, first, num_usable = step + 1, earlier + 1, 0
        return step

    # --- for both ---

    def _problem(self, number: int) -> Problem:
        while len(self._problems) <= number - self._boundary:
            self._problems += self.stream.draw(1)
        return self._problems[number - self._boundary]

    def _sampling_of(self, number: int) -> Sampling:
        """The settings of a group. Its noise is keyed by its place in the stream, as its step is not known yet."""
        assert self._origin is not None
        return replace(self._sampling, step=self._origin + number)

    def _note_usable(self, number: int, group: Rollout) -> None:
        if not self._selection.usable(group, self._sampling_of(number)):
            self._unusable.add(number)

    def _judge(self, sampled: list[tuple[int, tuple[Completion, ...], int]]) -> None:
        began = time.perf_counter()
        running = [self._running.pop(number) for number, *_ in sampled]
        completions = [samples for _, samples, _ in sampled]
        groups = self.sampler.judge([r.problem for r in running], [r.prompt for r in running], completions)
        with self._changed:
            for (number, _, version), request, group in zip(sampled, running, groups, strict=True):
                self._judged_groups[number] = JudgedGroup(group, request, version, began)
                self._note_usable(number, group)
            self._judging_s += time.perf_counter() - began
            self._changed.notify_all()

    def _failure(self) -> BaseException | None:
        if self._streaming is not None and self._streaming.done() and self._streaming.exception() is not None:
            return self._streaming.exception()
        return self._judging_thread.failure
