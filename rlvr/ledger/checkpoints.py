"""The checkpoints of a run on disk. rlvr/trainer/checkpoint.py writes them; one with its final name is complete."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.files import read_json


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints in a run's directory of checkpoints, oldest first."""
    return sorted(path for path in directory.glob("step-*") if layout.step_of(path) is not None)


def best_checkpoint(directory: Path) -> Path | None:
    """The checkpoint with the best evaluation; None if none has a score (see `checkpoint.keep_best`)."""
    scores = {path: as_score(_extra(path).get("score")) for path in checkpoints(directory)}
    scored = {path: score for path, score in scores.items() if score is not None}
    return max(scored, key=scored.__getitem__, default=None)


def is_unevaluated(checkpoint: Path) -> bool:
    """Whether it was saved between a step and its evaluation: then the journal may lack the step."""
    return _extra(checkpoint).get("unevaluated") is not None


def as_score(recorded: list[float] | float | None) -> list[float] | None:
    """A recorded `rlvr.metrics.standing`. Checkpoints of 0.2 have the accuracy alone, as a number."""
    return [recorded] if isinstance(recorded, int | float) else recorded


def _extra(checkpoint: Path) -> Mapping[str, Any]:
    state = read_json(layout.trainer_state(checkpoint)) or {}
    return state.get("extra") or {}


def superseded(directory: Path, keep: int, *, until: Path | None = None) -> Sequence[Path]:
    """The checkpoints that may be deleted: neither among the newest `keep` nor the best.

    until: the checkpoint just written. Later ones lie beyond a gap in the journal: the run cannot resume from them, so
    they are not counted, lest older ones that it can resume from be deleted. None: all are counted.
    """
    best = best_checkpoint(directory)
    counted = [path for path in checkpoints(directory) if until is None or path.name <= until.name]
    return [path for path in counted[:-keep] if path != best]
