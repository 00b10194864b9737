"""Names, colours and markers of the objectives that differ by their advantage: the arms of the likelihood studies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.frames.frame import Frame
from analysis.report import style

# Losses whose first update after a rollout is the plain policy gradient: their advantage is what tells them apart.
PLAIN = frozenset({"reinforce", "rloo", "dr_grpo", "grpo", "maxrl", "pkpo"})
NAMES = {
    "cross_entropy": "cross-entropy",
    "maxrl": "MaxRL",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "dr_grpo": "Dr. GRPO",
    "reinforce": "REINFORCE",
    "pkpo": "PKPO",
}
# Okabe and Ito (2008), as in style.
COLOURS = {
    "cross_entropy": "#009E73",
    "maxrl": "#0072B2",
    "grpo": "#000000",
    "rloo": "#E69F00",
    "dr_grpo": "#CC79A7",
    "reinforce": "#D55E00",
    "pkpo": "#56B4E9",
}
MARKERS = {"cross_entropy": "*", "maxrl": "o", "grpo": "D", "rloo": "x", "dr_grpo": "+", "reinforce": "s", "pkpo": "^"}


def objective(loss: str, advantage: str) -> str:
    """What a run optimises: the advantage of a plain policy gradient, else the loss, with a strange advantage named.

    advantage: "" where a planned run left only its loss.
    """
    if loss in PLAIN and advantage:
        return advantage if advantage in PLAIN else f"{loss} + {advantage}"
    return loss


def with_objectives(frame: Frame) -> Frame:
    """A frame with columns loss and advantage, and what they make: `objective`."""
    pairs = zip(frame["loss"], frame["advantage"], strict=True)
    return frame.assign(objective=pd.Series([objective(*p) for p in pairs], index=frame.index, dtype=object))


def ordered(found: Iterable[str]) -> list[str]:
    """Known objectives first, in the order of NAMES, then all others."""
    names = set(found)
    return [*(n for n in NAMES if n in names), *sorted(names - set(NAMES))]


def name(objective: str) -> str:
    return NAMES.get(objective, objective)


def look(objective: str) -> dict[str, Any]:
    """Colour and marker, as matplotlib's keywords."""
    return {"color": COLOURS.get(objective, style.OTHER), "marker": MARKERS.get(objective, "v")}
