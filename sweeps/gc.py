"""What the runs left behind and nobody reads: found first, removed on request. A run that is held is left alone.

A finished run keeps its newest checkpoint, and its best one where that was asked for (`checkpoint.keep_best`). What has
half its name (`.partial`, `.tmp`, `.old`, `.deleted`) was given up by a process that died. A stage goes when no run
starts from it. Metrics, samples and logs are never removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr.ledger import files as paths
from rlvr.ledger.lock import lock, lock_is_held, process_start, unlock
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.sweeps import Ledger

STALE_S = 3600.0  # a file aside may be that of a process elsewhere: an hour is longer than any writes it
HALF = (".partial", ".old", ".deleted")


@dataclass(frozen=True)
class Left:
    """Something to remove."""

    path: Path
    size: int  # bytes
    why: str
    lock: Path | None  # hold it while removing


def find(ledger: Ledger) -> list[Left]:
    """All that may go, in order of path. Nothing of a run whose lock is held, or where that cannot be told."""
    found = [left for run_id in ledger.runs() for left in _of_run(ledger, run_id)]
    found += _half_stages(ledger.root / "stages")
    found += _unused_stages(ledger)
    found += [_left(path, "half-written", None) for path in _stale_files(ledger)]
    return sorted(found, key=lambda left: left.path)


def _of_run(ledger: Ledger, run_id: str) -> Iterator[Left]:
    run_dir = ledger.run_dir(run_id)
    if lock_is_held(run_dir / "lock") is not False or (state := ledger.state(run_id).state) == "running":
        return
    for path in (run_dir / "checkpoints").glob(".step-*"):
        if path.suffix in HALF:
            yield _left(path, "half-written checkpoint", run_dir / "lock")
    if state == "finished":
        best = paths.best_checkpoint(run_dir / "checkpoints")
        for path in paths.checkpoints(run_dir / "checkpoints")[:-1]:
            if path != best:
                yield _left(path, "older checkpoint of a finished run", run_dir / "lock")


def _half_stages(store: Path) -> Iterator[Left]:
    for path in store.glob(".*.tmp"):
        held_by = store / f"{path.name.split('.')[1]}.lock"
        if lock_is_held(held_by) is False and _is_given_up(path, path.name.split(".")[-2]):
            yield _left(path, "half-built stage", held_by)


def _unused_stages(ledger: Ledger) -> Iterator[Left]:
    """None while a run has not said what it starts from; nor a new one, whose run may be about to say it."""
    recorded = [recorded_stages(ledger.run_dir(run_id)) for run_id in ledger.runs()]
    if None in recorded:
        return
    used = {stage for stages in recorded for stage in stages or []}
    for path in (ledger.root / "stages").glob("[!.]*"):
        if path.is_dir() and path.name not in used and time.time() - path.stat().st_mtime > STALE_S:
            yield _left(path, "stage that no run starts from", path.with_name(f"{path.name}.lock"))


def _stale_files(ledger: Ledger) -> Iterator[Path]:
    """Files and directories that a process wrote aside (rlvr/ledger/files.py, Ledger.create_run) and never renamed."""
    for folder in ("", "*/", "*/attempts/*/", "sweeps/*/", "submissions/*/"):
        for path in ledger.root.glob(f"{folder}.*.tmp"):
            if path.is_file() and _is_given_up(path, path.name.split(".")[-2]):
                yield path
    for path in ledger.root.glob(".*.*.*"):
        pid = path.name.split(".")[-2]
        if path.is_dir() and _is_given_up(path, pid):
            yield path


def _is_given_up(path: Path, pid: str) -> bool:
    """No process here has this number, and nothing was written for an hour."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return pid.isdigit() and process_start(int(pid)) is None and age > STALE_S


def _left(path: Path, why: str, held_by: Path | None) -> Left:
    return Left(path, _size(path), why, held_by)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [Path(root) / name for root, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size
        except FileNotFoundError:  # removed meanwhile
            continue
    return total


def remove(found: list[Left], say: Callable[[str], None]) -> int:
    """Remove what `find` found; bytes. What came to be held since then is left and said."""
    freed = 0
    for left in found:
        held = lock(left.lock, patience_s=0) if left.lock else None
        if left.lock and held is None:
            say(f"left {left.path}: in use now")
            continue
        try:
            freed += left.size if _remove(left.path) else 0
        finally:
            if held is not None:
                unlock(held)
    return freed


def _remove(path: Path) -> bool:
    """False: it is gone already, or something of it stayed."""
    try:
        path.unlink() if path.is_file() else paths.remove(path)
    except OSError:
        return False
    return True
