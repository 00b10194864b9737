"""Two streams of training problems (DPH-RL, arXiv:2509.07430): hard prompts to explore, easy ones to rehearse.

The base policy's own answers (rlvr/rollout/presample.py) tell which are which.
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

from rlvr.objective.batch import EXPLORE, REHEARSE, Batch, Policy
from rlvr.records import Completion, Problem, Reward, Rollout, Split, Task
from rlvr.rollout.presample import Samples
from rlvr.rollout.stream import Stream
from rlvr.trainer.collate import collate

log = logging.getLogger("rlvr")

AT_ONCE = 256  # stored responses whose log-probabilities are computed at once


def split_streams(samples: Samples, *, seed: int, rows: int, updates: int, pad_token_id: int) -> Mixture:
    """Split the problems. seed: of the run. rows: explored responses per step, in `updates` mini-batches."""
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
    if num_rehearsed < updates:
        raise ValueError(
            f"presample.ratio={samples.knobs.ratio:g} leaves {num_rehearsed} rehearsed responses beside {rows} "
            f"explored ones for trainer.updates={updates} mini-batches: pass presample.ratio={rows / updates:g} "
            "or less."
        )
    log.info("%s.", summary)
    rehearsals = ((samples.problems[i], samples.rows[i]) for i in np.flatnonzero(easy).tolist())
    kept = {problem.id: _stored(problem, row) for problem, row in rehearsals}
    explored, rehearsed = (Subset(samples.task, np.flatnonzero(chosen)) for chosen in (hard, easy))
    return Mixture(explored, Stream(rehearsed, seed), kept, num_rehearsed, pad_token_id)


def _stored(problem: Problem, row: Mapping[str, Any]) -> Rollout:
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
    """D_exp, to be explored, and D_pef's stored responses, of which every step rehearses `num_rehearsed`."""

    explored: Subset
    stream: Stream  # of D_pef
    kept: Mapping[str, Rollout]  # problem id → its one stored response
    num_rehearsed: int
    pad_token_id: int

    def with_logp(self, policy_of: Callable[[Batch], Policy], *, own: bool = False) -> Mixture:
        """With log-probabilities of stored responses whose engine gave none (vLLM with top_p < 1: NaN).

        own: of all of them, as explored rows have the trainer's own under rollout.logp_old=trainer: an engine's differ
        by its rounding, and the ratio of a policy that has not moved would not be 1.
        policy_of: what the base policy says of a batch. Called by all ranks.
        """
        kept = dict(self.kept)
        unknown = [name for name, group in kept.items() if own or np.isnan(group.completions[0].logp).any()]
        for first in range(0, len(unknown), AT_ONCE):
            names = unknown[first : first + AT_ONCE]
            groups = [kept[name] for name in names]
            batch = collate(groups, _no_advantage, pad_token_id=self.pad_token_id, policy_of=policy_of, own_logp=own)
            for name, group, logp, mask in zip(names, groups, batch.logp_old, batch.mask, strict=True):
                (completion,) = group.completions
                kept[name] = replace(group, completions=(replace(completion, logp=logp[mask].numpy()),))
        return replace(self, kept=kept)

    def add(self, batch: Batch, step: int) -> Batch:
        """The batch of a training step (1, 2, …) with its rehearsed responses: a function of seed and step alone."""
        drawn = replace(self.stream, position=(step - 1) * self.num_rehearsed).draw(self.num_rehearsed)
        rehearsed = collate([self.kept[p.id] for p in drawn], _no_advantage, pad_token_id=self.pad_token_id)
        return mix(batch, rehearsed)


def _no_advantage(reward: Tensor, group: Tensor) -> Tensor:  # noqa: ARG001 - the signature of an advantage
    return torch.zeros_like(reward)


def mix(explore: Batch, rehearse: Batch) -> Batch:
    """One batch of both: kind 0 and 1, groups of the second spread evenly among those of the first.

    Mini-batches are runs of groups, so an even spread gives each its share of both. A field that only one of them has
    is 0 on the rows of the other.
    """
    P, R = explore.num_groups, rehearse.num_groups
    spread = (torch.arange(R) * 2 + 1) * (P + R) // (2 * R)  # places of the second's groups
    others = torch.ones(P + R, dtype=torch.bool)
    others[spread] = False
    place = torch.cat([others.nonzero()[:, 0], spread])  # [P + R] new number of each group, first's before second's
    joined: dict[str, Tensor] = {}
    for name in (field.name for field in fields(Batch)):
        whole = _joined(name, explore, rehearse)
        if whole is not None:
            joined[name] = whole
    joined["group"] = group = torch.cat([place[explore.group], place[P + rehearse.group]])
    joined["kind"] = torch.cat([torch.full_like(explore.group, EXPLORE), torch.full_like(rehearse.group, REHEARSE)])
    rows, groups = group.argsort(stable=True), place.argsort()
    return Batch(**{name: whole[groups if name.startswith("prompt") else rows] for name, whole in joined.items()})


def _joined(name: str, explore: Batch, rehearse: Batch) -> Tensor | None:
    """A field of both, the rows of the second after those of the first, padded to one width: prompts at the left,
    responses at the right. None where neither has it.
    """
    first: Tensor | None = getattr(explore, name)
    second: Tensor | None = getattr(rehearse, name)
    like = first if first is not None else second
    if like is None:
        return None
    dims = max(x.dim() for x in (first, second) if x is not None)
    parts: list[Tensor] = []
    for part, batch in ((first, explore), (second, rehearse)):
        filled = like.new_zeros(len(batch.group)) if part is None else part
        if dims == 2 and filled.dim() == 1:
            filled = filled[:, None].expand(-1, batch.mask.shape[1])
        parts.append(filled)
    if dims == 1:
        return torch.cat(parts)
    width = max(p.shape[1] for p in parts)
    left = name.startswith("prompt")
    gaps = [width - p.shape[1] for p in parts]
    return torch.cat([functional.pad(p, (g, 0) if left else (0, g)) for p, g in zip(parts, gaps, strict=True)])
