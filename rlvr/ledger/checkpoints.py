"""The checkpoints that stand on disk. Written by rlvr/trainer/checkpoint.py; what has the name of one is complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    return (state.get("extra") or {}).get("score")


def superseded(directory: Path, keep: int) -> Sequence[Path]:
    """Those that are neither among the newest `keep` nor the best."""
    best = best_checkpoint(directory)
    return [path for path in checkpoints(directory)[:-keep] if path != best]
