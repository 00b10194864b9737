"""`python -m sweeps sync`: ships metrics that launches could not ship, each to the store of its launch."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.runs import Unreadable, read_config
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.tracker import presentation
from rlvr.tracker.cursor import is_behind
from sweeps.worker import in_own_session, shipper_command

AGAIN_S = 60.0  # least time between two attempts of commands to ship in the background


def sync(ledger: Ledger, uri: str | None) -> int:
    """One pass over all runs. uri: a store for all of them.

    Exit codes: those of `python -m rlvr.tracker.mlflow`.
    """
    sweeps = ledger.sweeps()
    if uri or not sweeps:
        commands = [shipper_command(ledger.home, uri=uri)]
    else:
        stores = _by_store((sweep, tracker_of(ledger, sweep)) for sweep in sweeps)
        commands = [shipper_command(ledger.home, "--sweep", *ids, uri=store) for store, ids in stores.items()]
    environment = imports.child_environment()
    return max(subprocess.run(command, env=environment, check=False).returncode for command in commands)


def sync_in_background(ledger: Ledger) -> bool:
    """Start to ship sweeps with ended runs, or a report, that are not in their store yet, and do not wait. Returns
    whether shipping was started.

    Only sweeps whose launch had a tracker. If a server was unreachable while runs ended, the next launch, status or
    report ships them, without any action of the user. The output goes to runs/sync.log.
    """
    log = layout.sync_log(ledger.home)
    if log.exists() and abs(time.time() - log.stat().st_mtime) < AGAIN_S:  # a clock may have been set back
        return False
    behind = [sweep for sweep in ledger.sweeps() if _is_behind(ledger, sweep)]
    trackers = ((sweep, tracker_of(ledger, sweep)) for sweep in behind)
    stores = _by_store((sweep, tracker) for sweep, tracker in trackers if tracker.get("enabled"))
    for store, ids in stores.items():
        with log.open("ab") as file:
            os.utime(log)  # a shipper writes to it only when it ends
            command = shipper_command(ledger.home, "--sweep", *ids, uri=store)
            in_own_session(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    return bool(stores)


def _is_behind(ledger: Ledger, sweep: Sweep) -> bool:
    """Whether MLflow lacks the end of a run, or a report. What another user alone may read, that user ships."""
    for run_id in sweep.run_ids:
        with contextlib.suppress(PermissionError):
            if is_behind(ledger.run_dir(run_id)):
                return True
    with contextlib.suppress(PermissionError):
        return presentation.is_behind(ledger.home, sweep)
    return False


def _by_store(sweeps: Iterable[tuple[Sweep, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Sweep ids by `tracker.uri` of their launches; "" where it is not set, and the environment decides."""
    stores: dict[str, list[str]] = {}
    for sweep, tracker in sweeps:
        stores.setdefault(str(tracker.get("uri") or ""), []).append(sweep.sweep_id)
    return stores


def tracker_of(ledger: Ledger, sweep: Sweep) -> Mapping[str, Any]:
    """The config group `tracker` of a sweep's launch; empty if it cannot be read."""
    if "tracker" in sweep.info:
        return sweep.info["tracker"]
    for run_id in sweep.run_ids:  # an older sweep.json: read a run, which may have finished under another tracker
        try:
            return read_config(ledger.run_dir(run_id)).get("tracker") or {}
        except Unreadable:  # the shipper reports this run
            continue
    return {}
