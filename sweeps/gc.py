"""What the runs left behind and nobody reads: found first, removed on request. A run that is held is left alone.

A finished run keeps its newest checkpoint, and its best one where that was asked for (`checkpoint.keep_best`). What
lies aside (rlvr/ledger/files.py) was given up by a process that died. A stage goes when no run starts from it. Metrics,
samples and logs are never removed, and nothing of a run of another version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr.ledger import files, layout
from rlvr.ledger.cause import State
from rlvr.ledger.checkpoints import superseded
from rlvr.ledger.digests import DAMAGED
from rlvr.ledger.lock import lock, lock_is_held, process_start, unlock
from rlvr.ledger.runs import Unreadable, grouped
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.sweeps import Ledger

STALE_S = 3600.0  # what lies aside may be that of a process elsewhere: an hour is longer than any writes it


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
    found += _half_stages(layout.stages(ledger.home))
    found += _unused_stages(ledger)
    found += [_left(path, "half-written", None) for path in _aside(ledger)]
    return sorted(found, key=lambda left: left.path)


def left_alone(ledger: Ledger) -> list[str]:
    """What cannot be read, a line for each reason."""
    states = ledger.states(ledger.runs())
    return grouped(Unreadable(f"run {s.run_id}", s.message) for s in states if s.state is State.UNREADABLE)


def _of_run(ledger: Ledger, run_id: str) -> Iterator[Left]:
    run_dir = ledger.run_dir(run_id)
    held_by, directory = layout.lock(run_dir), layout.checkpoints(run_dir)
    state = ledger.state(run_id).state
    if lock_is_held(held_by) is not False or state in (State.RUNNING, State.UNREADABLE):
        return
    for path in directory.glob(f".*{files.SUFFIX}"):  # the lock is their owner
        yield _left(path, "half-written checkpoint", held_by)
    for path in directory.glob(f"{DAMAGED}*"):
        yield _left(path, "damaged checkpoint", held_by)
    if state is State.FINISHED:
        for path in superseded(directory, 1):
            yield _left(path, "older checkpoint of a finished run", held_by)


def _half_stages(store: Path) -> Iterator[Left]:
    for path in store.glob(f".*{files.SUFFIX}"):
        held_by = layout.stage_lock(store, path.name.split(".")[1])
        if lock_is_held(held_by) is False and _is_given_up(path):
            yield _left(path, "half-built stage", held_by)


def _unused_stages(ledger: Ledger) -> Iterator[Left]:
    """None while a run has not said what it starts from; nor a new one, whose run may be about to say it."""
    run_ids = ledger.runs()
    recorded = [recorded_stages(ledger.run_dir(run_id)) for run_id in run_ids]
    if None in recorded or any(state.state is State.UNREADABLE for state in ledger.states(run_ids)):
        return
    used = {stage for stages in recorded for stage in stages or []}
    store = layout.stages(ledger.home)
    for path in store.glob("[!.]*"):
        if path.is_dir() and path.name not in used and time.time() - path.stat().st_mtime > STALE_S:
            yield _left(path, "stage that no run starts from", layout.stage_lock(store, path.name))


def _aside(ledger: Ledger) -> Iterator[Path]:
    """What a process wrote aside, outside the directories above, and never gave its name."""
    for folder in ("", "*/", "*/attempts/*/", "*/samples/", "*/rollouts/", "sweeps/*/", "submissions/*/"):
        for path in ledger.root.glob(f"{folder}.*{files.SUFFIX}"):
            if path.parent != layout.stages(ledger.home) and _is_given_up(path):
                yield path
    yield from filter(_is_given_up, layout.reports(ledger.home).glob(f".*{files.SUFFIX}"))


def _is_given_up(path: Path) -> bool:
    """No process here has the number of its owner, and nothing was written for an hour."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    owner = files.owner_of(path)
    return owner is not None and process_start(owner) is None and age > STALE_S


def _left(path: Path, why: str, held_by: Path | None) -> Left:
    return Left(path, _size(path), why, held_by)


def _size(path: Path) -> int:
    every = [path] if path.is_file() else [Path(root) / name for root, _, names in os.walk(path) for name in names]
    total = 0
    for file in every:
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
        files.remove(path)
    except OSError:
        return False
    return True
