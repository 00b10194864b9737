"""The checkpoints that stand on disk. Written by rlvr/trainer/checkpoint.py; what has the name of one is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.files import read_json


def checkpoints(directory: Path) -> list[Path]:
    """Those of a run's directory of checkpoints, oldest first."""
    return sorted(p for p in directory.glob("step-*") if layout.step_of(p) is not None)


def best_checkpoint(directory: Path) -> Path | None:
    """The checkpoint of the best evaluation, where a run keeps it (`checkpoint.keep_best`)."""
    scores = {path: _score(path) for path in checkpoints(directory)}
    scored = {path: score for path, score in scores.items() if score is not None}
    return max(scored, key=scored.__getitem__, default=None)


def _score(checkpoint: Path) -> float | None:
    state = read_json(layout.trainer_state(checkpoint)) or {}
    extra: Mapping[str, Any] = state.get("extra") or {}
    return extra.get("score")


def superseded(directory: Path, keep: int, *, until: Path | None = None) -> Sequence[Path]:
    """Those that are neither among the newest `keep`, nor the best.

    until: the one that was just written. Later ones are beyond a gap in the record: the run does not go on from them,
    and they must not cost it the one that it can go on from. None: all count.
    """
    best = best_checkpoint(directory)
    counted = [path for path in checkpoints(directory) if until is None or path.name <= until.name]
    return [path for path in counted[:-keep] if path != best]
