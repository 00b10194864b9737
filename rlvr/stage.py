"""A cached stage: something slow that is built once, by one process, and found complete or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr.lock import lock, unlock
from rlvr.paths import sync, write_json
from rlvr.records import TaughtTask

log = logging.getLogger(__name__)

SAY_WAITING_EVERY_S = 15.0
SAMPLED_DEMONSTRATIONS = 64


def stage(store: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> Path:
    """Directory `store`/<stage id>, built first if it does not exist. The id is a hash of `identity` (JSON).

    `build` fills an empty directory and returns what to remember; stage.json keeps that, the identity and the seconds.
    One process builds while others wait for its lock, which dies with it: a directory of this name is always complete.
    """
    name = stage_id(identity)
    final = store / name
    if final.exists():
        return final
    store.mkdir(parents=True, exist_ok=True)
    held = _wait_for(store / f"{name}.lock", f"{identity['source']} stage {name}")
    try:
        if not final.exists():
            for left_over in store.glob(f".{name}.*.tmp"):  # of builders that died: we hold the lock
                shutil.rmtree(left_over)
            _build(final, store / f".{name}.{os.getpid()}.tmp", identity, build)
    finally:
        unlock(held)
    return final


def stage_id(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of the identity as canonical JSON."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def task_identity(task: TaughtTask) -> dict[str, Any]:
    """What a stage depends on in a task: its class, vocabulary and public knobs, and its first demonstrations.

    The knobs are the task's own `identity` if it has one, else its public plain attributes. The demonstrations stand
    for the code that makes them: when it changes, so does the stage.
    """
    shown = json.dumps([task.demonstration(index) for index in range(SAMPLED_DEMONSTRATIONS)])
    knobs = getattr(task, "identity", None)
    if knobs is None:
        knobs = {name: value for name, value in vars(task).items() if not name.startswith("_") and _is_plain(value)}
    return {
        "class": f"{type(task).__module__}.{type(task).__qualname__}",
        "knobs": knobs,
        "vocabulary": list(task.vocabulary),
        "end_word": task.end_word,
        "demonstrations": hashlib.sha256(shown.encode()).hexdigest(),
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def _wait_for(path: Path, what: str) -> int:
    while (held := lock(path, patience_s=SAY_WAITING_EVERY_S if path.exists() else 0.5)) is None:
        log.info("waiting for another process to build the %s", what)
    return held


def _build(final: Path, aside: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> None:
    log.info("building the %s stage %s", identity["source"], final.name)
    aside.mkdir()
    began = time.monotonic()
    made = build(aside)
    seconds = round(time.monotonic() - began, 3)
    for file in aside.iterdir():
        sync(file)  # after a power cut, too, the name must mean complete
    write_json(aside / "stage.json", {"stage_id": final.name, "identity": identity, "seconds": seconds, **made})
    aside.rename(final)
    log.info("built the %s stage %s in %.1f s", identity["source"], final.name, seconds)
