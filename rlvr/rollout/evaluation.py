"""A policy on held-out problems: avg@n and pass@k per benchmark, and every sample on disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from rlvr.metrics import EVALUATION, distinct_at_k, pass_at_k
from rlvr.records import ArmedTask, CanonicalTask, Problem, Rollout, Sampling, Split, Task
from rlvr.rollout.sampler import Sampler, Spent

# Evaluation draws its noise from a stream of its own, the same at every step: checkpoints are compared under
# common random numbers.
NOISE_STREAM = 1 << 32


def held_out(task: Task, limit: int | None, split: Split = "test") -> list[Problem]:
    """The problems of a split, at most `limit` of each benchmark."""
    size = task.size(split)
    if size is None:
        raise ValueError(f"task {task.name} has no finite {split} split to evaluate on")
    taken: dict[str, int] = defaultdict(int)
    problems = []
    for problem in (task.problem(split, i) for i in range(size)):
        taken[problem.source] += 1
        if limit is None or taken[problem.source] <= limit:
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
) -> tuple[dict[str, float], list[Rollout]]:
    """Metrics `evaluation/<source>/avg_at_<n>`, `…/pass_at_<k>`, `…/error`, and the groups they come from.

    prefix: EVALUATION, or VALIDATION for problems of that split.
    A sample whose verifier failed counts neither as right nor as wrong: it leaves n. A problem left with fewer than k
    samples leaves pass@k; `…/error` is the share of such samples. Where the task says which right answers are the same
    (`CanonicalTask`), `…/distinct_correct_at_<n>` is the mean number of different ones of a problem whose n samples
    were all judged.
    """
    groups = sampler(problems, samples, sampling, Spent())
    by_source: dict[str, list[Rollout]] = defaultdict(list)
    for group in groups:
        by_source[group.problem.source].append(group)
    metrics: dict[str, float] = {}
    for source, own in by_source.items():
        n = np.array([sum(r.outcome != "error" for r in g.rewards) for g in own])
        c = np.array([sum(r.correct for r in g.rewards) for g in own])
        where = f"{prefix}{source}"
        metrics[f"{where}/error"] = 1 - float(n.sum()) / (len(own) * samples)
        if (n > 0).any():
            metrics[f"{where}/avg_at_{samples}"] = float(np.mean(c[n > 0] / n[n > 0]))
        for size in k:
            if (n >= size).any():
                metrics[f"{where}/pass_at_{size}"] = float(np.mean(pass_at_k(n[n >= size], c[n >= size], size)))
        if _has_several_answers(sampler.task) and (n == samples).any():
            judged = [g for g, num in zip(own, n, strict=True) if num == samples]
            distinct = [distinct_at_k(_right_answers(sampler.task, g), samples) for g in judged]
            metrics[f"{where}/distinct_correct_at_{samples}"] = float(np.mean(distinct))
    return metrics, groups


def _has_several_answers(task: Task) -> TypeGuard[CanonicalTask]:
    return isinstance(task, CanonicalTask) and task.several_answers


def _right_answers(task: CanonicalTask, group: Rollout) -> list[str | None]:
    return [
        task.canonical(group.problem, text) if reward.correct else None
        for text, reward in zip(group.texts, group.rewards, strict=True)
    ]


def metric_names(
    task: Task, problems: Sequence[Problem], *, samples: int, k: Sequence[int], prefix: str = EVALUATION
) -> list[str]:
    """What an evaluation of this task on these problems measures."""
    if isinstance(task, ArmedTask):
        return [f"{EVALUATION}bandit/expected_reward"]
    sources = dict.fromkeys(problem.source for problem in problems)
    names = [f"avg_at_{samples}", *(f"pass_at_{size}" for size in k), "error"]
    if _has_several_answers(task):
        names.append(f"distinct_correct_at_{samples}")
    return [f"{prefix}{source}/{name}" for source in sources for name in names]
