"""The nouns that cross rooms: problems, completions, rewards, rollouts, and who makes them. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "validation", "test"]
Outcome = Literal["correct", "wrong", "unparsable", "unevaluated", "timeout", "error"]


@dataclass(frozen=True)
class Problem:
    """One verifiable question. `id` is unique and stable in its task and split: noise and tables are keyed by it."""

    id: str
    prompt: str
    answer: Any = None  # what the verifier needs, JSON-serialisable
    source: str = ""  # the benchmark this problem belongs to: a column of the tables


@dataclass(frozen=True)
class Reward:
    """What the verifier says. `outcome` keeps a wrong answer, a slow one and a broken verifier apart.

    `error` means that the verifier failed, not the answer: such a completion has no reward and is never trained on
    or averaged. A `timeout` is an answer that could not be verified in its time: it earns `value` and is counted.
    `unevaluated` is one that has the right value and only restates the problem.
    """

    value: float
    outcome: Outcome

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


def binary(outcome: Outcome) -> Reward:
    """1 for a correct answer, 0 for any other."""
    return Reward(float(outcome == "correct"), outcome)


Judge = Callable[[Sequence[tuple[Problem, str]]], list[Reward]]  # of (problem, response text) pairs, in order


@dataclass(frozen=True)
class Request:
    """One prompt to be sampled `num_samples` times. `key`: 63 bits naming the problem, for counter-based noise.

    first: number of the first of these samples. Noise is named by it: samples 8 to 15 are the same whether or not
    samples 0 to 7 are asked for too.
    """

    prompt: NDArray[np.int64]  # [L] token ids
    num_samples: int
    key: int
    first: int = 0


@dataclass(frozen=True)
class Sampling:
    """How to sample. Noise is a function of (seed, step, request key, sample index, position) and nothing else."""

    max_tokens: int
    seed: int
    step: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Completion:
    """One sampled response. The *policy* is softmax(logits / temperature); sampling may truncate it further (top-p)."""

    tokens: NDArray[np.int64]  # [T] token ids, the end token included when it was sampled
    logp: NDArray[np.float32]  # [T] nats, under the policy
    logp_sampling: NDArray[np.float32]  # [T] nats, under the distribution the token was drawn from
    finished: bool  # ended by itself, not cut at max_tokens


@dataclass(frozen=True)
class Rollout:
    """A problem, its G completions and what the verifier said of each: one group."""

    problem: Problem
    prompt: NDArray[np.int64]  # [L] token ids
    completions: tuple[Completion, ...]  # G
    texts: tuple[str, ...]  # G, decoded without special tokens
    rewards: tuple[Reward, ...]  # G
    # Optimiser updates behind the oldest and the newest weights that drew a token of it; None: nobody kept them.
    updates: tuple[int, int] | None = None


@runtime_checkable
class Task(Protocol):
    """Where problems come from and how answers are judged. What else a task can do, further protocols below say.

    The three splits have no problem in common, but for tasks that have nothing to hold out (a bandit).
    """

    name: str
    max_tokens: int  # of a response, where `rollout.max_tokens` does not say

    def size(self, split: Split) -> int | None:
        """Number of problems of a split; None if the stream never ends, 0 if there is no such split."""
        ...

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split: a pure function of its arguments."""
        ...

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """Judge (problem, response text) pairs, in order."""
        ...

    def close(self) -> None:
        """Stop worker processes, if any."""
        ...


@runtime_checkable
class GradedTask(Task, Protocol):
    """A task that may give rewards other than 0 and 1: objectives for binary rewards are refused if it does."""

    graded: bool


def may_be_graded(task: object) -> bool:
    """Whether a task declares rewards other than 0 and 1."""
    return isinstance(task, GradedTask) and task.graded


@runtime_checkable
class SolvedTask(Task, Protocol):
    """A task that knows an answer to each of its problems: it can be learned by exact maximum likelihood."""

    def solution(self, problem: Problem) -> str:
        """A response that earns the full reward, with the end word if the task has one and there is room for it."""
        ...


@runtime_checkable
class TaughtTask(Task, Protocol):
    """A task with a closed vocabulary and demonstrations: a base policy can be made for it from nothing."""

    vocabulary: tuple[str, ...]  # words; prompts and responses are words joined by one space
    end_word: str  # the word that ends a response: a part of the answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, response) number `index` of the pre-training stream: disjoint from the test split."""
        ...


@runtime_checkable
class CanonicalTask(Task, Protocol):
    """A task whose problems may have several right answers: evaluation counts the different ones."""

    several_answers: bool  # whether, with these knobs, they do; where not, there is nothing to count

    def canonical(self, problem: Problem, response: str) -> str | None:
        """One text for all responses that give the same answer as this right one; None for one that is not right.

        Only asked about responses that `reward` found right: a task whose verdicts are costly need not judge again.
        """
        ...


@runtime_checkable
class AnsweringTask(Task, Protocol):
    """A task whose responses are longer than the answer they come to: a majority is counted over answers."""

    def answer(self, problem: Problem, response: str) -> str | None:
        """The answer that a response comes to, one text for answers that differ in their writing alone; None: none."""
        ...


@runtime_checkable
class OneWordTask(TaughtTask, Protocol):
    """A task whose responses are one word of a list, too long for each prompt's demonstrations to show all of it."""

    answers: tuple[str, ...]


@runtime_checkable
class ArmedTask(TaughtTask, Protocol):
    """A bandit: one prompt, one word of response. The policy over the arms is read off exactly, without sampling."""

    arms: tuple[str, ...]

    def rewards(self) -> NDArray[np.float64]:
        """The reward of every arm, [arms]."""
        ...


@runtime_checkable
class IdentifiedTask(TaughtTask, Protocol):
    """A task that says itself which of its knobs decide its demonstrations; else its public plain attributes do."""

    identity: Mapping[str, Any]


class NotAtHand(ValueError):
    """What a run needs and this machine lacks: data of the hub without a network, vLLM. A dry run goes on without."""


class EngineLost(RuntimeError):
    """The engine's process did not start, or died again and again, by what it said last. Whatever it lacked, memory of
    the GPU among it, the trainer did not."""


class EngineDisagrees(RuntimeError):
    """The engine gives other log-probabilities than the policy in training: its samples are not the policy's."""


@dataclass(frozen=True)
class Tolerance:
    """How far log-probabilities of trainer and engine may be apart after a sync, in nats, over tokens of fixed prompts.

    In half precision differences have heavy tails: a single token may be far off in a good run, so the largest is not
    judged.
    """

    largest: float
    high: float  # the 99th percentile
    mean: float

    @classmethod
    def exact(cls, limit: float) -> Tolerance:
        """Of float32: no token is off by more."""
        return cls(limit, limit, limit)

    @classmethod
    def rounded(cls, limit: float) -> Tolerance:
        """Of half precision: one token in a hundred may be off by more, and the mean is a sixth of it at most."""
        return cls(math.inf, limit, limit / 6)


class Engine(Protocol):
    """Samples responses from the weights it was last given, at first from those of its base policy.

    With several ranks each has an engine; `sync` and `sleep` are called by all of them.
    """

    canary: Tolerance | None  # how trainer and engine must agree after every sync; None: they cannot disagree
    # Copies of the policy that this rank's requests go to in turn, each of which is asked for the canary; 0 if it has
    # none, since another rank asks the engine that they share.
    workers: int

    def sync(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take new weights: (Hugging Face parameter name, full tensor) pairs."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        ...

    def sleep(self) -> None:
        """Make room for training: the next thing asked of the engine is a `sync`."""
        ...

    def close(self) -> None: ...


class Progress(Protocol):
    """Who listens while an engine samples. Its methods may be called by several threads."""

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        """All samples of request `row`."""
        ...

    @property
    def enough(self) -> bool:
        """Nobody needs what still runs."""
        ...


@runtime_checkable
class StoppingEngine(Engine, Protocol):
    """An engine that can stop before all requests are answered."""

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """Sample as `generate` does, the same samples, and give them to `progress` as soon as those of a request are
        there, nearly in the order of the requests. Soon after there are `enough` of them nothing is sampled any more.
        """
        ...


@runtime_checkable
class SpreadEngine(Engine, Protocol):
    """An engine that reaches nodes of the job without ranks, whose processors can judge."""

    training_nodes: int  # with ranks

    def judges(self, task: Mapping[str, Any]) -> list[Judge]:
        """One on each node without ranks. task: config that it is made of there. Each raises Lost if its node is."""
        ...


class Supply(Protocol):
    """What an engine is to sample, request by request, and who takes the samples. Called by several threads.

    version: number of the weights that the engine has then, counted by its syncs.
    """

    def begin(self, most: int, version: int) -> Sequence[tuple[int, Request, Sampling]]:
        """Requests to begin with these weights, of about `most` samples; each with its row, a number of its own."""
        ...

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        """All samples of a request."""
        ...

    def wait(self) -> None:
        """Until there may be something to begin, or a moment."""
        ...

    @property
    def enough(self) -> bool:
        """Nobody needs what still runs, and nothing more will come."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that takes new weights while it samples. Its methods may be called by several threads.

    A request that runs goes on from the new weights; each log-probability is that of the weights that drew the token.
    """

    version: int  # of the newest weights, counted by its syncs

    def generate_stream(self, supply: Supply) -> None:
        """Sample what the supply gives, until there is enough of it. What was lost with a process is sampled again."""
        ...
