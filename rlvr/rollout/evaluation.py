"""Evaluation of a policy on held-out problems: avg@n and pass@k per benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from rlvr.metrics import EVALUATION, OF_SAMPLES, coverage, distinct_at_k, maj_at_k, pass_at_k
from rlvr.records import (
    AnsweringTask,
    ArmedTask,
    CanonicalTask,
    Outcome,
    Problem,
    Reward,
    Rollout,
    Sampling,
    Split,
    Task,
    TaughtTask,
    may_be_graded,
)
from rlvr.rollout.sampler import RolloutCost, Sampler

# Evaluation draws its noise from a stream of its own, the same at every step: checkpoints are compared under common
# random numbers.
NOISE_STREAM = 1 << 32
MOST = 0.5  # share of responses without an answer above which something is likely to be wrong
NO_ANSWER = (
    "no answer that the task can read. Compare the prompt, the chat template and the longest response with what the "
    "task asks for (the same command with --dry-run --show)."
)
LAST = 80  # characters of a response in a message


class Abandoned(Exception):
    """An evaluation was abandoned. Raised on all ranks, at the same point."""


def held_out_problems(task: Task, limit: int | None, split: Split = "test") -> list[Problem]:
    """The problems of a split, at most `limit` of each benchmark. Raises ValueError if two of the split have one id."""
    size = task.size(split)
    if size is None:
        raise ValueError(f"task {task.name} has no finite {split} split to evaluate on")
    num_by_source: dict[str, int] = defaultdict(int)
    index_of: dict[str, int] = {}
    problems = []
    for index, problem in enumerate(task.problem(split, i) for i in range(size)):
        if index_of.setdefault(problem.id, index) != index:
            raise ValueError(
                f"task {task.name}: its {split} problems {index_of[problem.id]} and {index} both have the id "
                f"{problem.id!r}. Noise and tables are keyed by it: give each problem an id of its own."
            )
        num_by_source[problem.source] += 1
        if limit is None or num_by_source[problem.source] <= limit:
            problems.append(problem)
    return problems


def evaluate(
    sampler: Sampler,
    problems: Sequence[Problem],
    *,
    samples: int,
    k: Sequence[int],
    sampling: Sampling,
    prefix: str = EVALUATION,
    abandoned: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, float], list[Rollout]]:
    """Metrics `evaluation/<source>/avg_at_<n>`, `…/pass_at_<k>`, `…/error`, and the groups that they are computed from.
    `…/unparsable`, `…/finished` and `…/length` say why: of all samples, the shares without an answer and that ended by
    themselves, and the mean number of tokens.

    prefix: EVALUATION or VALIDATION. abandoned: see `Sampler`; raises Abandoned if any rank lacks groups for it.
    A sample whose verifier failed counts neither as right nor as wrong: it reduces n. A problem with fewer than k
    judged samples does not enter pass@k; `…/error` is the share of samples whose verifier failed. Where the task
    declares which right answers are the same (`CanonicalTask`), `…/distinct_correct_at_<n>` is the mean number of
    different ones, over the problems whose n samples were all judged. Where rewards may be other than 0 and 1
    (`GradedTask`), `…/mean_reward` is the mean over problems of the mean reward of their judged samples.
    """
    groups = sampler(problems, samples, sampling, RolloutCost(), abandoned=abandoned)
    if len(groups) < len(problems):
        raise Abandoned
    by_source: dict[str, list[Answers]] = defaultdict(list)
    for group in groups:
        by_source[group.problem.source].append(Answers.of(sampler.task, group))
    return evaluation_metrics(sampler.task, by_source, samples=samples, k=k, prefix=prefix), groups


@dataclass(frozen=True)
class Answers:
    """The samples of one problem: their outcomes, and the answers that they give (`answer_of`; None: no answer).

    rewards, lengths (tokens), finished (whether a sample ended by itself), extras: empty where they are not needed.
    """

    outcomes: tuple[Outcome, ...]
    answers: tuple[str | None, ...]
    rewards: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    finished: tuple[bool, ...] = ()
    extras: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def of(cls, task: Task, group: Rollout) -> Answers:
        """What `evaluation_metrics` reads: answers are None but for right samples of a task with several answers."""
        answers: list[str | None] = [None] * len(group.texts)
        if _has_several_answers(task):
            for i, (text, reward) in enumerate(zip(group.texts, group.rewards, strict=True)):
                answers[i] = task.canonical(group.problem, text) if reward.correct else None
        rewards = tuple(reward.value for reward in group.rewards)
        lengths = tuple(len(completion.tokens) for completion in group.completions)
        finished = tuple(completion.finished for completion in group.completions)
        outcomes, extras = zip(*((reward.outcome, reward.extras) for reward in group.rewards), strict=True)
        return cls(outcomes, tuple(answers), rewards, lengths, finished, extras)

    @property
    def judged(self) -> int:
        return sum(outcome != "error" for outcome in self.outcomes)

    @property
    def correct(self) -> list[bool]:
        return [outcome == "correct" for outcome in self.outcomes]

    @property
    def mean_reward(self) -> float:
        """Mean over the judged samples; there must be at least one."""
        pairs = zip(self.outcomes, self.rewards, strict=True)
        return float(np.mean([reward for outcome, reward in pairs if outcome != "error"]))

    def measured(self, name: str) -> list[float]:
        """What the task measured of the judged samples under a name of `Reward.extras`."""
        pairs = zip(self.outcomes, self.extras, strict=True)
        return [extras[name] for outcome, extras in pairs if outcome != "error" and name in extras]

    def of_judged(self) -> Answers:
        """The judged samples alone, without rewards."""
        pairs = zip(self.outcomes, self.answers, strict=True)
        judged = [pair for pair in pairs if pair[0] != "error"]
        return Answers(tuple(outcome for outcome, _ in judged), tuple(answer for _, answer in judged))

    def right(self) -> list[str | None]:
        """The answers of the right samples, None for the others."""
        return [a if outcome == "correct" else None for a, outcome in zip(self.answers, self.outcomes, strict=True)]


def answer_of(task: Task, problem: Problem, text: str, reward: Reward) -> str | None:
    """The answer that a response gives, as one text for all that are the same; None: none, or the task cannot tell.

    All right responses yield the right answer, however they write it; of several right answers, that of the response.
    """
    if reward.outcome == "unparsable":
        return None
    if reward.correct and isinstance(task, CanonicalTask):
        return task.canonical(problem, text)
    answer = vote_of(task, problem, text)
    known = problem.answer if isinstance(problem.answer, str) and isinstance(task, AnsweringTask) else None
    return known if reward.correct and known is not None and answer is not None else answer


def vote_of(task: Task | None, problem: Problem, text: str) -> str | None:
    """The answer that a response gives, as it is read without the right one; None: none, or the task cannot tell."""
    if isinstance(task, AnsweringTask):
        return task.answer(problem, text)
    return " ".join(text.split()) if isinstance(task, TaughtTask) else None


def evaluation_metrics(
    task: Task, by_source: Mapping[str, Sequence[Answers]], *, samples: int, k: Sequence[int], prefix: str
) -> dict[str, float]:
    """The metrics of `evaluate`, from the samples of each benchmark's problems."""
    metrics: dict[str, float] = {}
    for source, problems in by_source.items():
        n = np.array([problem.judged for problem in problems])
        c = np.array([sum(problem.correct) for problem in problems])
        where = f"{prefix}{source}"
        metrics[f"{where}/error"] = 1 - float(n.sum()) / (len(problems) * samples)
        metrics[f"{where}/unparsable"] = float(np.mean([o == "unparsable" for p in problems for o in p.outcomes]))
        if lengths := [length for problem in problems for length in problem.lengths]:
            metrics[f"{where}/length"] = float(np.mean(lengths))
            metrics[f"{where}/finished"] = float(np.mean([ended for problem in problems for ended in problem.finished]))
        if (n > 0).any():
            metrics[f"{where}/avg_at_{samples}"] = float(np.mean(c[n > 0] / n[n > 0]))
        if may_be_graded(task) and (n > 0).any():
            rewards = [problem.mean_reward for problem in problems if problem.judged]
            metrics[f"{where}/mean_reward"] = float(np.mean(rewards))
        for name in dict.fromkeys(name for problem in problems for extras in problem.extras for name in extras):
            measured = [values for problem in problems if (values := problem.measured(name))]
            metrics |= {f"{where}/{name}": float(np.mean([np.mean(values) for values in measured]))} if measured else {}
        for size in k:
            if (n >= size).any():
                metrics[f"{where}/pass_at_{size}"] = float(np.mean(pass_at_k(n[n >= size], c[n >= size], size)))
        if _has_several_answers(task) and (n == samples).any():
            distinct = [distinct_at_k(p.right(), samples) for p in problems if p.judged == samples]
            metrics[f"{where}/distinct_correct_at_{samples}"] = float(np.mean(distinct))
    return metrics


def warnings(groups: Sequence[Rollout]) -> list[str]:
    """Lines on what keeps the accuracies of a first evaluation from meaning what they seem to."""
    return [*without_answers(groups), *never_right(groups)]


def without_answers(groups: Sequence[Rollout]) -> list[str]:
    """A line for each benchmark of which most samples have no answer that the task can read, with the end of one."""
    texts: dict[str, list[str | None]] = defaultdict(list)  # by benchmark; None: with an answer
    for group in groups:
        pairs = zip(group.texts, group.rewards, strict=True)
        texts[group.problem.source] += [text if reward.outcome == "unparsable" else None for text, reward in pairs]
    lines = list[str]()
    for source, listed in texts.items():
        unread = [text for text in listed if text is not None]
        if len(unread) > MOST * len(listed):
            lines.append(
                f"{source}: {len(unread)} of {len(listed)} samples have {NO_ANSWER} One ends in {unread[0][-LAST:]!r}."
            )
    return lines


def never_right(groups: Sequence[Rollout]) -> list[str]:
    """A line if rewards are graded and no sample has the outcome `correct`: what chooses by accuracy cannot choose."""
    rewards = [reward for group in groups for reward in group.rewards if reward.outcome != "error"]
    if any(reward.correct for reward in rewards) or all(reward.value in (0, 1) for reward in rewards):
        return []
    return [
        f"none of {len(rewards)} samples has the outcome `correct`, whatever its reward: as long as that is so, every "
        "accuracy is 0, and by accuracy tune=, until= and tables choose (the best checkpoint is then that of most "
        "reward). Give the answers that count as right the outcome `correct`, or compare by BENCHMARK/mean_reward."
    ]


def _has_several_answers(task: Task) -> TypeGuard[CanonicalTask]:
    return isinstance(task, CanonicalTask) and task.several_answers


def complete_evaluation_metrics(
    task: Task, by_source: Mapping[str, Sequence[Answers]], *, samples: int, k: Sequence[int]
) -> dict[str, float]:
    """Metrics that need a complete evaluation: maj@k of the first k samples, and the share of problems ever solved.

    Computed from judged samples alone: a problem without any is left out, one with fewer than k is left out of
    maj@k. There is no majority if the right samples of a benchmark give no answer that the task can name.
    """
    names_answers = isinstance(task, AnsweringTask | CanonicalTask | TaughtTask)
    metrics: dict[str, float] = {}
    for source, all_problems in by_source.items():
        where = f"{EVALUATION}{source}"
        problems = [problem.of_judged() for problem in all_problems if problem.judged]
        if problems:
            metrics[f"{where}/coverage_at_{samples}"] = coverage([sum(problem.correct) for problem in problems])
        any_answer = any(answer is not None for problem in problems for answer in problem.answers)
        any_correct = any(correct for problem in problems for correct in problem.correct)
        if any_answer or (names_answers and not any_correct):
            for size in k:
                votes = [maj_at_k(p.answers, p.correct, size) for p in problems if p.judged >= size]
                if votes:
                    metrics[f"{where}/maj_at_{size}"] = float(np.mean(votes))
    return metrics


def metric_names(
    task: Task, problems: Sequence[Problem], *, samples: int, k: Sequence[int], prefix: str = EVALUATION
) -> list[str]:
    """The names of the metrics that an evaluation of this task on these problems yields."""
    if isinstance(task, ArmedTask):
        return [f"{EVALUATION}bandit/expected_reward"]
    sources = dict.fromkeys(problem.source for problem in problems)
    names = [f"avg_at_{samples}", *(f"pass_at_{size}" for size in k), *OF_SAMPLES]
    if _has_several_answers(task):
        names.append(f"distinct_correct_at_{samples}")
    if may_be_graded(task):
        names.append("mean_reward")
    return [f"{prefix}{source}/{name}" for source in sources for name in names]
