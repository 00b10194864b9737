"""What a study says of itself: its baseline, its claims, what it varied; as its launches recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from analysis.frames.frames import Frames


def swept(frames: Frames) -> dict[str, list[str]]:
    """The knobs that the sweeps behind these runs varied, with their values as typed, in their order."""
    found: dict[str, list[str]] = {}
    for sweep in frames.sweeps:
        for key, values in cast(Mapping[str, Sequence[str]], sweep.info.get("swept") or {}).items():
            found.setdefault(key, []).extend(v for v in values if v not in found[key])
    return {key: values for key, values in found.items() if key != "seed"}


def baseline(frames: Frames) -> str:
    """The arm that the study compares others to, as a selector; "" if it names none."""
    return str(_newest(frames, "baseline") or "")


def claims(frames: Frames) -> list[Mapping[str, Any]]:
    """The claims of the study, as they stood in its file when it was last launched."""
    return list(_newest(frames, "claims") or [])


def _newest(frames: Frames, key: str) -> Any:
    """Of the newest launch that recorded it."""
    return next((sweep.info[key] for sweep in reversed(frames.sweeps) if sweep.info.get(key)), None)
