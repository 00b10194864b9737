"""What the files of studies (sweeps/NAME.yaml) say today, beside what a launch recorded. Nothing is composed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rlvr.ledger.runs import parse_yaml

FOLDER = Path(__file__).parents[1] / "sweeps"


def claims(folder: Path = FOLDER) -> dict[str, list[Mapping[str, Any]]]:
    """By study, in the order of their names, its claims; studies without one are left out."""
    files = {file.stem: _read(file) for file in sorted(folder.glob("*.yaml"))}
    return {name: list(content["claims"]) for name, content in files.items() if content.get("claims")}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two claims test the same, however they are worded."""
    keys = ("metric", "arm", "relation", "of", "against", "at")
    return all(one.get(key) == other.get(key) for key in keys)


def _read(file: Path) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], parse_yaml(file.read_bytes()))
