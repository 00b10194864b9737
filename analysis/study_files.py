"""The claims and settings in the files of studies (sweeps/NAME.yaml) today, to be compared to those that a launch
recorded. The files are read as YAML; no config is composed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlvr.ledger.runs import flatten, parse_yaml

if TYPE_CHECKING:
    from analysis.frames.frames import Frames

FOLDER = Path(__file__).parents[1] / "sweeps"
PAPERS = Path(__file__).parents[1] / "conf" / "paper"
_NO_SETTING = ("defaults", "also", "baseline", "claims", "hydra")


def claims(folder: Path = FOLDER) -> dict[str, list[Mapping[str, Any]]]:
    """By study, in the order of the names, its claims; studies without claims are left out."""
    files = {file.stem: _read(file) for file in sorted(folder.glob("*.yaml"))}
    return {name: list(content["claims"]) for name, content in files.items() if content.get("claims")}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two claims test the same, whatever their wording."""
    keys = ("metric", "arm", "relation", "of", "against", "at")
    return all(one.get(key) == other.get(key) for key in keys)


def changed(frames: Frames, folder: Path = FOLDER, papers: Path = PAPERS) -> dict[str, tuple[str, str]]:
    """(value in the runs, value today) of each key that the study's file, or its paper's, sets to a value that no run
    has. Keys that a study leaves to the defaults of conf/ are not compared."""
    file = folder / f"{frames.study}.yaml"
    differing: dict[str, tuple[str, str]] = {}
    for key, value in (_settings(file, papers) if file.exists() else {}).items():
        recorded = {str(knob) for run in frames.rows if (knob := run.knob(key)) is not None}
        today = str(value)
        if recorded and not any(_equal(value, today) for value in recorded) and "$" not in today:
            differing[key] = (", ".join(sorted(recorded)), today)
    return differing


def _equal(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _settings(file: Path, papers: Path) -> dict[str, Any]:
    """The values that a study's file sets, by dotted key, over those of the files in its `defaults`."""
    content, settings = _read(file), dict[str, Any]()
    for entry in content.get("defaults", ()):
        base = entry.get("override /paper") if isinstance(entry, Mapping) else entry
        if isinstance(base, str) and base != "_self_":
            settings |= _settings(papers / f"{base.removeprefix('/paper/')}.yaml", papers)
    return settings | flatten({key: value for key, value in content.items() if key not in _NO_SETTING})


def _read(file: Path) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], parse_yaml(file.read_bytes()))
