"""Responses that were cut, or nearly: what that costs, and whether they are learned from (DAPO, arXiv:2503.14476)."""

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
    """The groups with the penalty of its length added to every reward. Outcomes stay: accuracy is what it was.

    buffer: tokens, max_tokens at most; below 1 a share of them; None for no penalty.
    """
    if buffer is None:
        return groups
    buffer = buffer * max_tokens if buffer < 1 else buffer
    penalised_groups = list[Rollout]()
    for group in groups:
        rewards = list[Reward]()
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            lost = penalty(len(completion.tokens), max_tokens=max_tokens, buffer=buffer, factor=factor)
            rewards.append(replace(reward, value=reward.value + lost))
        penalised_groups.append(replace(group, rewards=tuple(rewards)))
    return penalised_groups


def without_cut(batch: Batch, groups: Sequence[Rollout]) -> Batch:
    """The collated groups, without the tokens of responses that were cut at the limit: neither their loss nor their
    number counts, their rewards have had their part in the advantages (section 3.4, overlong filtering).

    Raises ValueError if nothing is left.
    """
    finished = torch.tensor([c.finished for group in groups for c in group.completions])
    if not bool(finished.any()):
        raise ValueError(
            f"all {len(finished)} responses of a step were cut: rollout.overlong_filter=true leaves nothing to learn "
            "from. Pass more rollout.max_tokens, or drop it."
        )
    return replace(batch, mask=batch.mask & finished[:, None])
