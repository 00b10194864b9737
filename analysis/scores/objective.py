"""Objectives that differ by their advantage, the arms of the likelihood studies: their order."""

from collections.abc import Iterable

# Losses whose first update after a rollout is the plain policy gradient: they differ by their advantage alone.
PLAIN = frozenset({"reinforce", "rloo", "dr_grpo", "grpo", "maxrl", "pkpo"})
ORDER = ("cross_entropy", "maxrl", "grpo", "rloo", "dr_grpo", "reinforce", "reinforce_mean", "pkpo")


def objective(loss: str, advantage: str) -> str:
    """The objective of a run: the advantage of a plain policy gradient, else the loss. An advantage of no loss in PLAIN
    is added to the loss.

    advantage: "" if only the loss of a planned run is known.
    """
    if loss in PLAIN and advantage:
        return advantage if advantage in PLAIN else f"{loss} + {advantage}"
    return loss


def ordered(objectives: Iterable[str]) -> list[str]:
    """Known objectives first, in the order of ORDER, then all others by name."""
    distinct = set(objectives)
    return [*(known for known in ORDER if known in distinct), *sorted(distinct - set(ORDER))]
