"""What a study says of itself: its baseline, its claims, what it varied; as its launches recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from analysis.frames.frames import Frames
from analysis.scores.crossed import LEVEL


def swept(frames: Frames) -> dict[str, list[str]]:
    """The knobs that the sweeps behind these runs varied, with their values as typed, in their order."""
    found: dict[str, list[str]] = {}
    for sweep in frames.sweeps:
        for key, values in cast(Mapping[str, Sequence[str]], sweep.info.get("swept") or {}).items():
            found.setdefault(key, []).extend(v for v in values if v not in found[key])
    return {key: values for key, values in found.items() if key != "seed"}


def baseline(frames: Frames) -> str:
    """The arm that the study compares others to, as a selector; "" if it names none."""
    return str(frames.newest("baseline") or "")


def claims(frames: Frames) -> list[Mapping[str, Any]]:
    """The claims of the study, as they stood in its file when it was last launched."""
    return list(frames.newest("claims") or [])


def stopping_rule(frames: Frames) -> Mapping[str, Any]:
    """Of the newest sweep that was run until something was decided (`until=`), with its looks; {} if none was."""
    return frames.newest("until") or {}


def level(frames: Frames) -> float:
    """The level of confidence at which this study's intervals stand: 95 %; where it was looked at several times, what
    the stopping rule leaves to its newest look, for all that share it.
    """
    rule = stopping_rule(frames)
    if not rule or not rule["looks"]:
        return LEVEL
    return 1 - min(rule["parts"] * rule["looks"][-1]["level"], 1 - LEVEL)
