"""Finds files that nothing reads any more, and removes them on request. Files of a run whose lock is held are skipped.

A finished run keeps its newest checkpoint, with `checkpoint.keep_best` its best one, and those that unfinished
evaluations read. Half-written files (rlvr/ledger/files.py) are those whose process was killed while writing. A stage is
removed when no run starts from it.
Metrics, samples and logs are never removed, nor anything of a run that another version has written.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr.ledger import files, layout
from rlvr.ledger.cause import State
from rlvr.ledger.checkpoints import superseded
from rlvr.ledger.digests import DAMAGED
from rlvr.ledger.lock import lock, lock_is_held, process_start, unlock
from rlvr.ledger.runs import Unreadable, lines_by_reason, read_config
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger

# Below runs/, where files are written (rlvr/ledger/layout.py); checkpoints and stages have rules of their own.
_FOLDERS_OF_RUNS = (
    *("", "*/", "*/attempts/*/", "*/samples/", "*/rollouts/", "*/diversity/", "sweeps/*/", "submissions/*/"),
    "evaluations/*/",
)
STALE_S = 3600.0  # a half-written file may belong to a process on another machine: no write takes an hour


@dataclass(frozen=True)
class Removable:
    """A file or directory to remove."""

    path: Path
    why: str
    lock: Path | None = None  # to be held while removing

    @functools.cached_property
    def size(self) -> int:
        """Bytes when it is first asked for."""
        path = self.path
        paths = [path] if path.is_file() else [Path(root) / name for root, _, names in os.walk(path) for name in names]
        total = 0
        for file in paths:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += file.lstat().st_size
        return total


def find(ledger: Ledger) -> list[Removable]:
    """Everything that may be removed, in order of path. Skips a run whose lock is held, or may be held."""
    states = ledger.states(ledger.runs())
    awaited = _awaited_policies(ledger, states)
    removable = [item for state in states for item in _checkpoints_of_run(ledger, state, awaited)]
    removable += _half_built_stages(layout.stages(ledger.home))
    removable += _unused_stages(ledger, states)
    removable += [Removable(path, "half-written") for path in _half_written(ledger)]
    return sorted(removable, key=lambda item: item.path)


def unreadable(ledger: Ledger) -> list[str]:
    """The runs that cannot be read, and are therefore skipped: a line for each reason."""
    states = ledger.states(ledger.runs())
    return lines_by_reason(Unreadable(f"run {s.run_id}", s.message) for s in states if s.state is State.UNREADABLE)


def _awaited_policies(ledger: Ledger, states: Sequence[RunState]) -> set[Path] | None:
    """The checkpoints that evaluations read which have not finished; None if some config cannot be read."""
    awaited: set[Path] = set()
    for state in states:
        if state.state is State.FINISHED:
            continue
        try:
            policy = read_config(ledger.run_dir(state.run_id)).get("policy")
        except Unreadable:
            return None
        if policy and policy.get("path"):
            awaited.add(Path(policy["path"]).resolve())
    return awaited


def _checkpoints_of_run(ledger: Ledger, run: RunState, awaited: set[Path] | None) -> Iterator[Removable]:
    """awaited: checkpoints to keep; None: all of them."""
    run_dir = ledger.run_dir(run.run_id)
    run_lock, directory = layout.lock(run_dir), layout.checkpoints(run_dir)
    if lock_is_held(run_lock) is not False or run.state in (State.RUNNING, State.UNREADABLE):
        return
    for path in directory.glob(f".*{files.SUFFIX}"):  # only the holder of the run's lock writes them
        yield Removable(path, "half-written checkpoint", run_lock)
    for path in directory.glob(f"{DAMAGED}*"):
        yield Removable(path, "damaged checkpoint", run_lock)
    if run.state is State.FINISHED and awaited is not None:
        for path in superseded(directory, 1):
            if path.resolve() not in awaited:
                yield Removable(path, "older checkpoint of a finished run", run_lock)


def _half_built_stages(store: Path) -> Iterator[Removable]:
    for path in store.glob(f".*{files.SUFFIX}"):
        stage_lock = layout.stage_lock(store, path.name.split(".")[1])
        if lock_is_held(stage_lock) is False and _is_abandoned(path):
            yield Removable(path, "half-built stage", stage_lock)


def _unused_stages(ledger: Ledger, states: Sequence[RunState]) -> Iterator[Removable]:
    """Stages that no run starts from; none while some run has not recorded its stages. A stage younger than STALE_S is
    kept, as its run may be about to record it.
    """
    recorded = [recorded_stages(ledger.run_dir(state.run_id)) for state in states]
    if None in recorded or any(state.state is State.UNREADABLE for state in states):
        return
    used = {stage for stages in recorded for stage in stages or []}
    store = layout.stages(ledger.home)
    for path in store.glob("[!.]*"):
        if path.is_dir() and path.name not in used and time.time() - path.stat().st_mtime > STALE_S:
            yield Removable(path, "stage that no run starts from", layout.stage_lock(store, path.name))


def _half_written(ledger: Ledger) -> Iterator[Path]:
    """Abandoned temporary files outside the directories above: their writers never renamed them to their final name."""
    for folder in _FOLDERS_OF_RUNS:
        for path in ledger.root.glob(f"{folder}.*{files.SUFFIX}"):
            if path.parent != layout.stages(ledger.home) and _is_abandoned(path):
                yield path
    for folder in ("", "[!.]*/"):  # a half-written report is one item, whatever it contains
        yield from filter(_is_abandoned, layout.reports(ledger.home).glob(f"{folder}.*{files.SUFFIX}"))


def _is_abandoned(path: Path) -> bool:
    """Whether no process on this machine has the pid of its writer, and it is unchanged for STALE_S."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    owner = files.owner_of(path)
    return owner is not None and process_start(owner) is None and age > STALE_S


def remove(removable: list[Removable], say: Callable[[str], None]) -> int:
    """Remove these; returns the bytes that were freed. An item whose lock has been taken since `find` is kept, with a
    message, and so is one that cannot be removed.
    """
    freed = 0
    for item in removable:
        held = lock(item.lock, patience_s=0) if item.lock else None
        if item.lock and held is None:
            say(f"kept {item.path}: in use now")
            continue
        size = item.size
        try:
            files.remove(item.path)
            freed += size
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:  # on NFS, for example, a file that another node has open leaves one behind
            say(f"kept {item.path}, or a part of it: {error.strerror or error}")
        finally:
            if held is not None:
                unlock(held)
    return freed
