"""The properties of a study that its launches recorded: the knobs it varied, its baseline, claims and stopping rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from analysis.frames.frames import Frames
from analysis.scores.crossed import LEVEL


def swept(frames: Frames) -> dict[str, list[str]]:
    """The knobs that the sweeps of these runs varied, except the seed, with their values as typed, in their order."""
    values_of: dict[str, list[str]] = {}
    for sweep in frames.sweeps:
        for key, values in cast(Mapping[str, Sequence[str]], sweep.info.get("swept") or {}).items():
            values_of.setdefault(key, []).extend(v for v in values if v not in values_of[key])
    return {key: values for key, values in values_of.items() if key != "seed"}


def baseline(frames: Frames) -> str:
    """The selector of the arm that the study compares others to; "" if it names none."""
    return str(frames.newest("baseline") or "")


def claims(frames: Frames) -> list[Mapping[str, Any]]:
    """The claims of the study, as in its file at the last launch."""
    return list(frames.newest("claims") or [])


def stopping_rule(frames: Frames) -> Mapping[str, Any]:
    """The stopping rule, with its looks, of the newest sweep that has one (`until=`); {} if none has."""
    return frames.newest("until") or {}


def level(frames: Frames) -> float:
    """The level of confidence of this study's intervals: 95 %, or under a stopping rule the level of its newest look,
    over all differences that share it.
    """
    rule = stopping_rule(frames)
    if not rule or not rule["looks"]:
        return LEVEL
    return 1 - min(rule["parts"] * rule["looks"][-1]["level"], 1 - LEVEL)
