"""Responses at or near the limit of length: a penalty on their reward, and a filter (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from rlvr.objective.batch import Batch
from rlvr.records import Reward, Rollout


def penalty(length: int, *, max_tokens: int, buffer: float, factor: float) -> float:
    """min(−(length − (max_tokens − buffer)) / buffer · factor, 0) (Eq. 13): 0 up to the buffer, −factor at the end."""
    return min((max_tokens - buffer - length) / buffer * factor, 0.0)


def penalised(groups: Sequence[Rollout], *, max_tokens: int, buffer: float | None, factor: float) -> Sequence[Rollout]:
    """The groups, with the penalty for the response's length added to each reward. Outcomes, and so accuracy, stay.

    buffer: tokens, at most max_tokens; below 1: a share of max_tokens; None: no penalty.
    """
    if buffer is None:
        return groups
    buffer = buffer * max_tokens if buffer < 1 else buffer
    penalised_groups = list[Rollout]()
    for group in groups:
        rewards = list[Reward]()
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            length = len(completion.tokens)
            change = penalty(length, max_tokens=max_tokens, buffer=buffer, factor=factor)
            rewards.append(replace(reward, value=reward.value + change))
        penalised_groups.append(replace(group, rewards=tuple(rewards)))
    return penalised_groups


def without_cut(batch: Batch, groups: Sequence[Rollout]) -> Batch:
    """The collated groups, with the tokens of responses that were cut at the limit masked out: they count neither in
    the loss nor in the number of tokens. Their rewards have already entered the advantages (section 3.4, overlong
    filtering).

    Raises ValueError if all responses were cut.
    """
    finished = torch.tensor([c.finished for group in groups for c in group.completions])
    if not bool(finished.any()):
        raise ValueError(
            f"all {len(finished)} responses of a step were cut: rollout.overlong_filter=true leaves nothing to learn "
            "from. Pass more rollout.max_tokens, or drop it."
        )
    return replace(batch, mask=batch.mask & finished[:, None])
