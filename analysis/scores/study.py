"""What a study says of itself: its question, its baseline, its claims; as its launch recorded them, else its file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from analysis.frames.load import Frames

SWEEPS = Path(__file__).parents[2] / "sweeps"


def swept(frames: Frames) -> dict[str, list[str]]:
    """The knobs that the sweeps behind these runs varied, with their values as typed, in their order."""
    found: dict[str, list[str]] = {}
    for sweep in frames.sweeps:
        for key, values in cast(Mapping[str, Sequence[str]], sweep.info.get("swept") or {}).items():
            found.setdefault(key, []).extend(v for v in values if v not in found[key])
    return {key: values for key, values in found.items() if key != "seed"}


def baseline(frames: Frames) -> str:
    """The arm that the study compares others to, as a selector; "" if it names none."""
    return str(_said(frames, "baseline") or "")


def claims(frames: Frames) -> list[Mapping[str, Any]]:
    """The claims of the study, as they stand in its YAML."""
    return list(_said(frames, "claims") or [])


def question(study: str) -> str:
    """Line 1 of sweeps/<study>.yaml, where a study states its question; "" for a sweep typed on the command line."""
    lines = [line for line in _text(study).split("\n") if not line.startswith("# @package")]
    return lines[0].lstrip("# ").strip() if lines[0].startswith("#") else ""


def _said(frames: Frames, key: str) -> Any:
    """From the newest launch that recorded it, else from the study's file of this checkout."""
    for sweep in reversed(frames.sweeps):
        if sweep.info.get(key):
            return sweep.info[key]
    content = yaml.safe_load(_text(frames.study)) or {}
    return content.get(key) if isinstance(content, dict) else None


def _text(study: str) -> str:
    file = SWEEPS / f"{study}.yaml"
    return file.read_text(encoding="utf-8") if re.fullmatch(r"[\w-]+", study) and file.exists() else ""
