"""Asking a run to stop early, because others are better: through the ledger, so on whatever node it is. No torch."""

from __future__ import annotations

from pathlib import Path

from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.files import read_json, write_json

FILE = "prune.json"


def ask_to_prune(run_dir: Path, reason: str) -> None:
    """The newest attempt saves after its step and ends as `pruned`. A later attempt has to be asked again."""
    path = run_dir / "attempts" / str(newest_attempt(run_dir)) / FILE
    if path.parent.is_dir() and not path.exists():
        write_json(path, {"reason": reason})


def asked_to_prune(attempt: Path) -> str:
    """Why this attempt (its directory) was asked to stop; "" if it was not."""
    path = attempt / FILE
    return str((read_json(path) or {}).get("reason", "")) if path.exists() else ""
