"""Objectives that differ by their advantage, the arms of the likelihood studies: their names and their order."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

# Losses whose first update after a rollout is the plain policy gradient: their advantage is what tells them apart.
PLAIN = frozenset({"reinforce", "rloo", "dr_grpo", "grpo", "maxrl", "pkpo"})
NAMES = {
    "cross_entropy": "cross-entropy",
    "maxrl": "MaxRL",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "dr_grpo": "Dr. GRPO",
    "reinforce": "REINFORCE",
    "reinforce_mean": "REINFORCE with a baseline",
    "pkpo": "PKPO",
}


def objective(loss: str, advantage: str) -> str:
    """What a run optimises: the advantage of a plain policy gradient, else the loss, with a strange advantage named.

    advantage: "" where a planned run left only its loss.
    """
    if loss in PLAIN and advantage:
        return advantage if advantage in PLAIN else f"{loss} + {advantage}"
    return loss


def with_objectives(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with columns loss and advantage, and what they make: `objective`."""
    pairs = zip(frame["loss"], frame["advantage"], strict=True)
    return frame.assign(objective=pd.Series([objective(*p) for p in pairs], index=frame.index, dtype=object))


def ordered(found: Iterable[str]) -> list[str]:
    """Known objectives first, in the order of NAMES, then all others."""
    names = set(found)
    return [*(n for n in NAMES if n in names), *sorted(names - set(NAMES))]


def name(objective: str) -> str:
    return NAMES.get(objective, objective)
