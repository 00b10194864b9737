"""From problems to rollouts: generation and rewards, and what they cost. The same for any engine."""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from rlvr.records import (
    Completion,
    Engine,
    Outcome,
    Problem,
    ReplyingTask,
    Request,
    Reward,
    Rollout,
    Sampling,
    StoppingEngine,
    Task,
    hash64,
)
from rlvr.rollout.first_usable import Board, FirstUsable, up_to
from rlvr.rollout.rewards import rewards_of
from rlvr.rollout.turns import converse, turns_of

T = TypeVar("T")
OUTCOMES = tuple(outcome for outcome in get_args(Outcome) if outcome != "correct")


def noise_key(problem: Problem) -> int:
    """63 bits that identify a problem, the same in every process."""
    return hash64(problem.id) >> 1


@dataclass
class RolloutCost:
    """The cost and contents of one step's rollouts, over all generation rounds. Seconds are those of this process."""

    rollout_s: float = 0.0
    reward_s: float = 0.0
    tokens: int = 0
    rounds: int = 0
    share: float = 1.0  # share of the problems drawn whose groups were kept
    rollouts: list[Rollout] = field(default_factory=list[Rollout])  # all that were generated, kept or not
    filter_saw_right: bool = False  # whether a filter of problems has seen a right answer

    def add(self, groups: Sequence[Rollout], *, rollout_s: float, reward_s: float) -> None:
        """Add one round."""
        self.rollout_s += rollout_s
        self.reward_s += reward_s
        self.tokens += sum(len(c.tokens) for g in groups for c in g.completions)
        self.rounds += 1
        self.rollouts += groups

    @property
    def right(self) -> bool:
        """Whether any answer was right."""
        return self.filter_saw_right or any(r.correct for g in self.rollouts for r in g.rewards)

    def metrics(self) -> dict[str, float]:
        """Metrics over everything generated: the policy's own average, before dynamic sampling selects."""
        return {
            **(self._response_metrics() if self.rollouts else {}),  # a filter may leave no problem to sample
            "time/rollout_s": self.rollout_s,
            "time/reward_s": self.reward_s,
            "tokens/rollout": float(self.tokens),
            "rollout/rounds": float(self.rounds),
            "throughput/rollout_tokens_per_s": self.tokens / max(self.rollout_s, 1e-9),
        }

    def _response_metrics(self) -> dict[str, float]:
        completions = [c for g in self.rollouts for c in g.completions]
        return {
            **reward_metrics([g.rewards for g in self.rollouts]),
            "response/length": float(np.mean([len(c.tokens) for c in completions])),
            "response/finished": float(np.mean([c.finished for c in completions])),
        }


def reward_metrics(groups: Sequence[Sequence[Reward]]) -> dict[str, float]:
    """Metrics of the rewards of one group of responses or more. A failed verifier's count in no mean."""
    rewards = [reward for group in groups for reward in group]
    scored = [reward for reward in rewards if reward.outcome != "error"]
    outcomes = Counter(reward.outcome for reward in rewards)
    means: dict[str, float] = {}
    if scored:
        means["reward/mean"] = float(np.mean([reward.value for reward in scored]))
        means["reward/accuracy"] = float(np.mean([reward.correct for reward in scored]))
    for name in dict.fromkeys(name for reward in scored for name in reward.extras):
        means[f"reward/{name}"] = float(np.mean([r.extras[name] for r in scored if name in r.extras]))
    return {
        **means,
        "reward/solved_fraction": float(np.mean([any(reward.correct for reward in group) for group in groups])),
        **{f"reward/{outcome}": outcomes[outcome] / len(rewards) for outcome in OUTCOMES},
    }


def throughput(step: Mapping[str, float], *, devices: int) -> dict[str, float]:
    """Tokens per second of a step, which has no training time if it had nothing to learn from. devices: GPUs (or CPUs)
    of the ranks, and of engines that have their own.
    """
    tokens = max(step["tokens/rollout"], 1.0)
    training: dict[str, float] = {}
    if "time/train_s" in step:
        training["throughput/train_tokens_per_s"] = step["tokens/train"] / step["time/train_s"]
    return {
        **training,
        "throughput/tokens_per_s": tokens / step["time/step_s"],
        "throughput/gpu_s_per_token": devices * step["time/step_s"] / tokens,
    }


@dataclass(frozen=True)
class CollectedSamples:
    """A `Progress` that collects all samples, by row. on_answer: called whenever a request is answered."""

    on_answer: Callable[[], None] = lambda: None
    abandoned: Callable[[], bool] = lambda: False
    samples: dict[int, tuple[Completion, ...]] = field(default_factory=dict[int, tuple[Completion, ...]])

    @property
    def enough(self) -> bool:
        return self.abandoned()

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.samples[row] = samples
        self.on_answer()


@dataclass(frozen=True)
class Sampler:
    """Generates and judges groups. Several engines take the problems in turn, and all ranks receive all groups."""

    task: Task
    engine: Engine
    encode: Callable[[Sequence[Problem]], list[NDArray[np.int64]]]
    decode: Callable[[Sequence[NDArray[np.int64]]], list[str]]
    rank: int = 0
    world: int = 1
    gather: Callable[[list[Rollout]], list[list[Rollout]]] = lambda mine: [mine]
    new_board: Callable[[], Board | None] = lambda: None  # of several ranks
    # held while judging: a task need not support two threads at once
    judge_lock: threading.Lock = field(default_factory=threading.Lock)
    ranks_per_engine: int = 1  # the first of them operates the engine, on behalf of all
    encode_reply: Callable[[str], Sequence[int]] = lambda _: ()  # of a `ReplyingTask`, to token ids
    on_answer: Callable[[], None] = lambda: None  # called, by any thread, whenever this rank's engine has answered

    @property
    def engines(self) -> int:
        """The number of engines, which share the problems."""
        return self.world // self.ranks_per_engine

    @property
    def engine_number(self) -> int | None:
        """The number of the engine that this rank operates; None if another rank operates it."""
        engine, rank_of_engine = divmod(self.rank, self.ranks_per_engine)
        return None if rank_of_engine else engine

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items that are this rank's, where engines take them in turn; none if another rank operates its engine."""
        return [] if self.engine_number is None else items[self.engine_number :: self.engines]

    def gather_engines(self, mine: list[Rollout]) -> list[list[Rollout]]:
        """The groups of each engine, on every rank. mine: the groups of this rank."""
        return self.gather(mine)[:: self.ranks_per_engine]

    def draw(self, problem_rows: Sequence[tuple[Problem, int, int]], sampling: Sampling) -> list[Rollout]:
        """Sample and judge, on this rank alone, these (problem, number of its first sample, number of samples)."""
        problems = [problem for problem, _, _ in problem_rows]
        prompts = self.encode(problems)
        requests = [
            Request(prompt, count, noise_key(problem), first)
            for prompt, (problem, first, count) in zip(prompts, problem_rows, strict=True)
        ]
        return self.judge(problems, prompts, self._respond(problems, requests, sampling))

    def judge(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[NDArray[np.int64]],
        completions: Sequence[tuple[Completion, ...]],
    ) -> list[Rollout]:
        """Judge groups that this rank has sampled."""
        self.on_answer()
        texts = [tuple(self.decode([c.tokens for c in group])) for group in completions]
        answers = [(problem, text) for problem, group in zip(problems, texts, strict=True) for text in group]
        with self.judge_lock:
            rewards = iter(rewards_of(self.task, answers))
        rewards_by_group = [tuple(next(rewards) for _ in group) for group in texts]
        parts = zip(problems, prompts, completions, texts, rewards_by_group, strict=True)
        if not isinstance(self.task, ReplyingTask):
            return [Rollout(*of_group) for of_group in parts]
        turns = [tuple(turns_of(c, self.decode) for c in group) for group in completions]
        return [Rollout(*of_group, turns=said) for of_group, said in zip(parts, turns, strict=True)]

    def __call__(
        self,
        problems: Sequence[Problem],
        samples: int,
        sampling: Sampling,
        spent: RolloutCost,
        first: Sequence[int] | None = None,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> list[Rollout]:
        """Groups in the order of `problems`, the same on every rank. Their cost is added to `spent`.

        first: number of the first sample of each group; None: 0. abandoned: whether the groups are no longer needed;
        once it is true it stays so. Fewer groups are then returned, unless they are complete but for other ranks.
        """
        mine = self.share(problems)
        began = time.perf_counter()
        prompts, requests = self._requests(mine, samples, first)
        completions = self._respond(mine, requests, sampling, abandoned)
        generated = time.perf_counter()
        groups = [] if abandoned() else self.judge(mine, prompts, completions)
        judged = time.perf_counter()
        merged = self._merge_engines(problems, groups)
        spent.add(merged, rollout_s=generated - began, reward_s=judged - generated)
        return merged

    def first_usable(
        self,
        problems: Sequence[Problem],
        samples: int,
        sampling: Sampling,
        spent: RolloutCost,
        first: Sequence[int] | None = None,
        *,
        wanted: int,
        usable: Callable[[Rollout], bool],
    ) -> list[Rollout]:
        """Groups in the order of `problems` up to the `wanted`-th usable one, or all; the same on every rank.

        An engine that can stop does so there: groups are judged while others are sampled. Groups beyond are
        discarded, so that the result does not depend on how far the engine came.
        """
        mine = self.share(problems)
        began = time.perf_counter()
        prompts, requests = self._requests(mine, samples, first)

        def judge(completed: Sequence[tuple[int, tuple[Completion, ...]]]) -> list[Rollout]:
            rows, completions = zip(*completed, strict=True)
            return self.judge([mine[row] for row in rows], [prompts[row] for row in rows], completions)

        board = self.new_board()
        engine = self.rank // self.ranks_per_engine
        progress = FirstUsable(wanted, usable, judge, engine=engine, engines=self.engines, board=board)
        try:
            if isinstance(self.engine, StoppingEngine) and requests:
                self.engine.generate_until(requests, sampling, progress)
            elif requests:
                for row, group in enumerate(self.engine.generate(requests, sampling)):
                    progress.take(row, group)
            generated = time.perf_counter()
        finally:
            groups = progress.close()
        judged = time.perf_counter()
        merged = up_to(self._merge_engines(problems, groups), wanted, usable)
        spent.add(merged, rollout_s=generated - began, reward_s=judged - generated)
        return merged

    def _respond(
        self,
        mine: Sequence[Problem],
        requests: Sequence[Request],
        sampling: Sampling,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> list[tuple[Completion, ...]]:
        """All samples, or none if they were abandoned. mine: the problems of the requests."""
        if not isinstance(self.task, ReplyingTask):
            return self._generate(requests, sampling, abandoned)
        generate = functools.partial(self._generate, abandoned=abandoned)
        return converse(self.task, mine, requests, sampling, generate, self.encode_reply, self.decode)

    def _generate(
        self, requests: Sequence[Request], sampling: Sampling, abandoned: Callable[[], bool] = lambda: False
    ) -> list[tuple[Completion, ...]]:
        """All samples, or none if they were abandoned. Each answered request is reported if the engine can do so."""
        if not requests or not isinstance(self.engine, StoppingEngine):
            return self.engine.generate(requests, sampling) if requests else []
        collected = CollectedSamples(self.on_answer, abandoned)
        self.engine.generate_until(requests, sampling, collected)
        return [] if abandoned() else [collected.samples[row] for row in range(len(requests))]

    def _requests(
        self, mine: Sequence[Problem], samples: int, first: Sequence[int] | None
    ) -> tuple[list[NDArray[np.int64]], list[Request]]:
        """Prompts and requests of this rank's problems. first: of all ranks' problems."""
        prompts = self.encode(mine)
        numbers = [0] * len(mine) if first is None else self.share(first)
        return prompts, [
            Request(prompt, samples, noise_key(problem), number)
            for prompt, problem, number in zip(prompts, mine, numbers, strict=True)
        ]

    def _merge_engines(self, problems: Sequence[Problem], mine: list[Rollout]) -> list[Rollout]:
        """The groups of all engines in the order of their problems, up to the first that is missing."""
        per_engine = self.gather_engines(mine)
        merged = list[Rollout]()
        for number, problem in enumerate(problems):
            row, engine = divmod(number, self.engines)
            if row == len(per_engine[engine]):
                break
            # Groups of other ranks come without the text of their problem, which every rank knows.
            merged.append(replace(per_engine[engine][row], problem=problem))
        return merged
