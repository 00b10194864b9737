"""The types that several packages share: problems, completions, rewards, rollouts; tasks and engines. No torch."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "validation", "test", "final"]
Outcome = Literal["correct", "wrong", "unparsable", "unevaluated", "timeout", "error"]

MOST_ANSWER = 2000  # characters of a right answer for people: tests of programs can be megabytes
LONGEST = 100  # characters of a part that is kept whole: trackers take names of 250


def hash64(content: str | bytes) -> int:
    """64 bits of BLAKE2b, the same in every process: what a text decides, such as the split of a problem."""
    content = content.encode() if isinstance(content, str) else content
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def name_part(text: str) -> str:
    """A text as a part of a metric's name, or as a file's: ASCII letters, digits, '_', '.' and '-'.

    No two texts become one: a text with other characters, or a long one, gets a hash of itself at its end.
    """
    plain = re.sub("^Average", "average", re.sub(r"[^A-Za-z0-9_.-]+", "-", text))  # Average: the columns of means
    if plain == text and 0 < len(text) <= LONGEST and not text.startswith("."):
        return text
    return f"{plain[:LONGEST].lstrip('.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")


@dataclass(frozen=True)
class Problem:
    """One verifiable question. `id` is unique in its task and split, and stable: noise and tables are keyed by it."""

    id: str
    prompt: str
    answer: Any = None  # what the verifier needs, JSON-serialisable
    source: str = ""  # the benchmark that this problem belongs to: a column of the tables


@dataclass(frozen=True)
class Reward:
    """The output of the verifier. `outcome` distinguishes a wrong answer, a slow one and a failure of the verifier.

    `error` means that the verifier failed, not the answer: such a completion has no reward, and is never trained on
    or averaged. `timeout`: the answer could not be verified in its time; its reward is `value`, and it is counted.
    `unevaluated`: the response has the right value but only restates the problem.

    extras: what else the task measured of this answer, by name, such as {"moves": 12}. They are logged as means
    (`reward/moves`, `evaluation/BENCHMARK/moves`) and shown with the sample; nothing is learned from them.
    """

    value: float
    outcome: Outcome
    extras: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"


def binary(outcome: Outcome) -> Reward:
    """Reward 1 for a correct answer, 0 for any other."""
    return Reward(float(outcome == "correct"), outcome)


@dataclass(frozen=True)
class Request:
    """One prompt to be sampled `num_samples` times. key: 63 bits that identify the problem, for counter-based noise.

    first: number of the first of these samples. Noise depends on these numbers: samples 8 to 15 are the same whether or
    not samples 0 to 7 are requested, too.
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
    given: NDArray[np.bool_] | None = None  # [T] tokens of the task's replies, never learned from; None: there are none


POLICY = "assistant"  # the role of the turns of a conversation that the policy wrote
Conversation = tuple[tuple[str, str], ...]  # (role, text) of each turn after the prompt


@dataclass(frozen=True)
class Rollout:
    """A problem, its G completions and the reward of each: one group."""

    problem: Problem
    prompt: NDArray[np.int64]  # [L] token ids
    completions: tuple[Completion, ...]  # G
    texts: tuple[str, ...]  # G, decoded without special tokens
    rewards: tuple[Reward, ...]  # G
    # Optimiser updates of the oldest and the newest weights that drew a token of the group; None: not known.
    updates: tuple[int, int] | None = None
    turns: tuple[Conversation, ...] = ()  # G, of responses that are conversations


@runtime_checkable
class Task(Protocol):
    """A source of problems, with a judge of answers. The protocols below are for tasks with further abilities.

    The three splits have no problem in common, except in tasks with nothing to hold out (a bandit).
    """

    name: str
    max_tokens: int  # of a response, if `rollout.max_tokens` is not set

    def size(self, split: Split) -> int | None:
        """Number of problems in a split; None if the stream never ends, 0 if there is no such split."""
        ...

    def problem(self, split: Split, index: int) -> Problem:
        """Problem `index` of a split: a pure function of its arguments."""
        ...

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """The rewards of (problem, response text) pairs, in order."""
        ...

    def close(self) -> None:
        """Stop worker processes, if any."""
        ...


@runtime_checkable
class GradedTask(Task, Protocol):
    """A task that may give rewards other than 0 and 1. If `graded`, objectives for binary rewards are rejected."""

    graded: bool


def may_be_graded(task: object) -> bool:
    """Whether a task declares rewards other than 0 and 1."""
    return isinstance(task, GradedTask) and task.graded


@runtime_checkable
class SolvedTask(Task, Protocol):
    """A task that knows an answer to each of its problems: it can be learned by exact maximum likelihood."""

    def solution(self, problem: Problem) -> str:
        """A response with the full reward; it includes the end word if the task has one and there is room for it."""
        ...


@runtime_checkable
class ReplyingTask(Task, Protocol):
    """A task that replies to what the policy writes: a response is a conversation, sampled turn by turn.

    The policy reads replies and does not learn from their tokens. `reward` judges the whole text, in which the task
    must be able to tell its own words from the policy's.
    """

    turn_tokens: int  # of a turn at most; an end token ends it, too

    def reply(self, problem: Problem, response: str) -> str | None:
        """What follows the response so far; None: the conversation is over."""
        ...


def reply_of(task: ReplyingTask, problem: Problem, response: str) -> str | None:
    """The reply of a task. Raises ValueError, with the place of the method, for one that is no text."""
    reply: Any = task.reply(problem, response)
    if not isinstance(reply, str | None):
        code = inspect.unwrap(type(task).reply).__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        raise ValueError(f"{place}: `reply` returned {reply!r:.200}. It returns a text, or None at the end.")
    return reply


@runtime_checkable
class GuessedTask(Task, Protocol):
    """A task that knows guesses of its own form, which no sound problem has for its right answer."""

    def guesses(self, problem: Problem) -> Mapping[str, str]:
        """Responses that need no look at the problem, by a description of each."""
        ...


def right_answer(task: Task, problem: Problem) -> str:
    """The right answer as people read it: the task's own solution, else what its verifier compares answers to."""
    if isinstance(task, SolvedTask):
        return task.solution(problem)
    answer = "" if problem.answer is None else problem.answer
    return (answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))[:MOST_ANSWER]


@runtime_checkable
class TaughtTask(Task, Protocol):
    """A task with a closed vocabulary and demonstrations: a base policy can be trained on it from scratch."""

    vocabulary: tuple[str, ...]  # words; prompts and responses are words joined by one space
    end_word: str  # the word that ends a response, and is a part of the answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, response) number `index` of the pre-training stream, which is disjoint from the test split."""
        ...


@runtime_checkable
class FinalTask(Task, Protocol):
    """A task with a split `final`, which no evaluation of training reads. It may be empty."""

    has_final: bool


@runtime_checkable
class CanonicalTask(Task, Protocol):
    """A task whose problems may have several right answers: evaluation counts the different ones."""

    several_answers: bool  # whether problems have several answers with these knobs; if not, nothing is counted

    def canonical(self, problem: Problem, response: str) -> str | None:
        """A text that is the same for all right responses with the same answer; None if the response is not right.

        Only called for responses that `reward` judged as right: a task whose judging is costly need not judge again.
        """
        ...


@runtime_checkable
class AnsweringTask(Task, Protocol):
    """A task whose responses contain more than their answer: a majority is counted over the answers."""

    def answer(self, problem: Problem, response: str) -> str | None:
        """The answer in a response, in one spelling for answers that differ only in that; None if there is none."""
        ...


@runtime_checkable
class OneWordTask(TaughtTask, Protocol):
    """A task whose responses are one word of a list that is too long for the demonstrations of a prompt to show all."""

    answers: tuple[str, ...]


@runtime_checkable
class ArmedTask(TaughtTask, Protocol):
    """A bandit: one prompt, responses of one word. The policy over the arms is computed exactly, without sampling."""

    arms: tuple[str, ...]

    def rewards(self) -> NDArray[np.float64]:
        """The reward of every arm, [arms]."""
        ...


@runtime_checkable
class IdentifiedTask(TaughtTask, Protocol):
    """A task that lists the knobs that decide its demonstrations. Else its public plain attributes count as such."""

    identity: Mapping[str, Any]


class NotAvailable(ValueError):
    """Raised if this machine lacks what a run needs: vLLM, or a network for data of the hub. A dry run continues."""


class EngineDisagrees(RuntimeError):
    """Raised if log-probabilities of engine and trainer differ: the samples are not those of the policy in training."""


@dataclass(frozen=True)
class Tolerance:
    """Limits of the absolute differences in log-probability between trainer and engine after a sync, in nats.

    They are measured on the tokens of fixed prompts. In half precision the differences have heavy tails: a single token
    may differ much in a good run, so the largest difference is not limited then.
    """

    largest: float
    high: float  # of the 99th percentile
    mean: float

    @classmethod
    def exact(cls, limit: float) -> Tolerance:
        """For float32: no token may differ by more than `limit`."""
        return cls(limit, limit, limit)

    @classmethod
    def rounded(cls, limit: float) -> Tolerance:
        """For half precision: one token in a hundred may differ by more than `limit`; the mean by a sixth of it."""
        return cls(math.inf, limit, limit / 6)


class Engine(Protocol):
    """Samples responses with the weights of the last `sync`, at first with those of its base policy.

    With several ranks, each rank has an engine, and all ranks call `sync` and `sleep`.
    """

    tolerance: Tolerance | None  # between trainer and engine after every sync; None: they cannot disagree
    dtype: Any  # of its weights, in which the ranks gather what `sync` gets: torch.dtype, or its name
    # Number of copies of the policy among which this rank's requests are distributed, and which the canary tests each;
    # 0 if another rank sends the requests to the engine that they share.
    copies: int

    def sync(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Replace the weights by these (Hugging Face parameter name, full tensor) pairs."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        ...

    def sleep(self) -> None:
        """Free memory for training. The next call to the engine is `sync`."""
        ...

    def close(self) -> None: ...


class Progress(Protocol):
    """Receives samples while an engine draws them. Its methods may be called by several threads."""

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        """Receive all samples of request `row`."""
        ...

    @property
    def enough(self) -> bool:
        """Whether the requests that are still running are no longer needed."""
        ...


@runtime_checkable
class StoppingEngine(Engine, Protocol):
    """An engine that can stop before all requests are answered."""

    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """Draw the same samples as `generate`, and pass them to `progress` as soon as a request is complete.

        Requests are completed nearly in their order. Sampling ends soon after `progress.enough` is true.
        """
        ...


class Supply(Protocol):
    """Gives requests to an engine, and receives their samples. Several threads may call its methods.

    version: the weights that the engine has at that time, as its number of syncs.
    """

    def begin(self, most: int, version: int) -> Sequence[tuple[int, Request, Sampling]]:
        """Requests to start with these weights, of about `most` samples in all, as (row, request, sampling)."""
        ...

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        """Receive all samples of the request with this row."""
        ...

    def wait(self) -> None:
        """Wait until there may be a request to start, or for a short time."""
        ...

    @property
    def most_running(self) -> int:
        """Number of samples that can be running at the same time, over all threads."""
        ...

    @property
    def enough(self) -> bool:
        """Whether running requests are no longer needed, and no more requests will follow."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that takes new weights while it samples. Its methods may be called by several threads.

    A running request continues with the new weights; each log-probability is under the weights that drew the token.
    """

    version: int  # number of syncs so far

    def generate_stream(self, supply: Supply) -> None:
        """Sample the requests of `supply` until `supply.enough`. What is lost with a process is sampled again."""
        ...
