"""Two streams of training problems (DPH-RL, arXiv:2509.07430): hard prompts to explore, easy ones to rehearse.

A problem is easy or hard by the base policy's own answers (rlvr/rollout/presample.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rlvr.objective.advantage import none as no_advantage
from rlvr.objective.batch import EXPLORE, REHEARSE, Batch, Policy
from rlvr.records import Completion, Problem, Reward, Rollout, Split, Task
from rlvr.rollout.presample import Samples
from rlvr.rollout.stream import Stream
from rlvr.trainer.collate import collate

log = logging.getLogger("rlvr")

AT_ONCE = 256  # stored responses whose log-probabilities are computed at once


def split_streams(samples: Samples, *, seed: int, rows: int, pad_token_id: int) -> Mixture:
    """Split the problems into easy and hard ones. seed: of the run. rows: explored responses per step.

    Raises ValueError if one of the streams is empty.
    """
    correct = np.array([row["correct"] for row in samples.rows])
    easy = correct >= samples.knobs.threshold
    hard = ~easy & ((correct > 0) | (not samples.knobs.drop_unsolved))
    summary = (
        f"Of {len(correct)} pre-sampled problems {easy.sum()} had {samples.knobs.threshold} or more correct responses "
        f"of {samples.knobs.samples}, {(correct == 0).sum()} had none, {hard.sum()} are left to explore"
    )
    if not easy.any() or not hard.any():
        remedy = "Lower" if not easy.any() else "Raise"
        raise ValueError(f"{summary}: both streams need some. {remedy} presample.threshold, or take other problems.")
    num_rehearsed = round(rows / samples.knobs.ratio)
    log.info("%s.", summary)
    stored = dict[str, Rollout]()
    for i in np.flatnonzero(easy).tolist():
        problem = samples.problems[i]
        stored[problem.id] = _stored_rollout(problem, samples.rows[i])
    explored, rehearsed = (Subset(samples.task, np.flatnonzero(chosen)) for chosen in (hard, easy))
    return Mixture(explored, Stream(rehearsed, seed), stored, num_rehearsed, pad_token_id)


def _stored_rollout(problem: Problem, row: Mapping[str, Any]) -> Rollout:
    logp = np.asarray(row["logp"], np.float32)
    completion = Completion(np.asarray(row["tokens"], np.int64), logp, logp, finished=True)
    reward = Reward(1.0, "correct")
    return Rollout(problem, np.asarray(row["prompt"], np.int64), (completion,), ("",), (reward,))


class Subset:
    """A task of which only some training problems are left, renumbered."""

    def __init__(self, task: Task, indices: NDArray[np.int64]) -> None:
        self.name, self.max_tokens, self._task, self.indices = task.name, task.max_tokens, task, indices

    def size(self, split: Split) -> int | None:
        return len(self.indices) if split == "train" else self._task.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        return self._task.problem(split, int(self.indices[index]) if split == "train" else index)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        return self._task.reward(answers)

    def close(self) -> None:
        self._task.close()


@dataclass(frozen=True)
class Mixture:
    """The problems to explore (D_exp), and the stored responses (D_pef), of which each step rehearses some."""

    explored: Subset
    stream: Stream  # of the problems of D_pef
    stored: Mapping[str, Rollout]  # problem id → its one stored response
    num_rehearsed: int
    pad_token_id: int

    def with_logp(self, policy_of: Callable[[Batch], Policy], *, own: bool = False) -> Mixture:
        """The mixture with log-probabilities for the stored responses whose engine returned NaN (vLLM with top_p < 1).

        own: for all stored responses, as with rollout.logp_old=trainer explored responses have the trainer's own: an
        engine's differ by rounding or temperature, and the ratio of a policy that has not changed would not be 1.
        policy_of: returns the base policy's outputs for a batch. Called by all ranks.
        """
        stored = dict(self.stored)
        unknown = [name for name, group in stored.items() if own or np.isnan(group.completions[0].logp).any()]
        for first in range(0, len(unknown), AT_ONCE):
            names = unknown[first : first + AT_ONCE]
            groups = [stored[name] for name in names]
            batch = collate(groups, no_advantage, pad_token_id=self.pad_token_id, policy_of=policy_of, own_logp=own)
            for name, group, logp, mask in zip(names, groups, batch.logp_old, batch.mask, strict=True):
                (completion,) = group.completions
                stored[name] = replace(group, completions=(replace(completion, logp=logp[mask].numpy()),))
        return replace(self, stored=stored)

    def add(self, batch: Batch, step: int) -> Batch:
        """The batch of a training step (1, 2, …) with rehearsed responses, which depend on seed and step only."""
        problems = replace(self.stream, position=(step - 1) * self.num_rehearsed).draw(self.num_rehearsed)
        groups = [self.stored[problem.id] for problem in problems]
        rehearsed = collate(groups, no_advantage, pad_token_id=self.pad_token_id)
        return mix(batch, rehearsed)


def mix(explore: Batch, rehearse: Batch) -> Batch:
    """One batch of both, of kind EXPLORE and REHEARSE; the rehearsed groups are spread evenly among the explored ones.

    So each mini-batch gets its share of both kinds. A field that only one of the batches has is 0 in rows of the other.
    """
    P, R = explore.num_groups, rehearse.num_groups
    rehearsed = (torch.arange(R) * 2 + 1) * (P + R) // (2 * R)  # new numbers of the rehearsed groups
    is_explored = torch.ones(P + R, dtype=torch.bool)
    is_explored[rehearsed] = False
    place = torch.cat([is_explored.nonzero()[:, 0], rehearsed])  # [P + R] new number of each group, explored ones first
    joined: dict[str, Tensor] = {}
    for field in fields(Batch):
        values = _joined(field.name, explore, rehearse)
        if values is not None:
            joined[field.name] = values
    joined["group"] = group = torch.cat([place[explore.group], place[P + rehearse.group]])
    joined["kind"] = torch.cat([torch.full_like(explore.group, EXPLORE), torch.full_like(rehearse.group, REHEARSE)])
    rows, groups = group.argsort(stable=True), place.argsort()
    return Batch(**{name: values[groups if name.startswith("prompt") else rows] for name, values in joined.items()})


def _joined(name: str, explore: Batch, rehearse: Batch) -> Tensor | None:
    """A field of both batches, explored rows first, padded to one width: prompts at the left. None: neither has it."""
    first: Tensor | None = getattr(explore, name)
    second: Tensor | None = getattr(rehearse, name)
    template = first if first is not None else second
    if template is None:
        return None
    dims = max(values.dim() for values in (first, second) if values is not None)
    parts: list[Tensor] = []
    for part, batch in ((first, explore), (second, rehearse)):
        filled = template.new_zeros(len(batch.group)) if part is None else part
        if dims == 2 and filled.dim() == 1:
            filled = filled[:, None].expand(-1, batch.mask.shape[1])
        parts.append(filled)
    if dims == 1:
        return torch.cat(parts)
    width = max(p.shape[1] for p in parts)
    left = name.startswith("prompt")
    gaps = [width - p.shape[1] for p in parts]
    return torch.cat([functional.pad(p, (g, 0) if left else (0, g)) for p, g in zip(parts, gaps, strict=True)])
