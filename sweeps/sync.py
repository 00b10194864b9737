"""`python -m sweeps sync`: what launches could not ship goes to the stores that they named."""

from __future__ import annotations

import subprocess

from rlvr.config import imports
from rlvr.ledger.runs import Unreadable, read_config
from rlvr.ledger.sweeps import Ledger, Sweep
from sweeps.worker import shipping


def sync(ledger: Ledger, uri: str | None) -> int:
    """One pass over all runs. uri: a store for all of them. Exit codes: those of `python -m rlvr.tracker.mlflow`."""
    sweeps = ledger.sweeps()
    if uri or not sweeps:
        command = shipping(ledger.home, *(["--uri", uri] if uri else []))
        return subprocess.run(command, env=imports.environment(), check=False).returncode
    stores: dict[str, list[str]] = {}
    for sweep in sweeps:
        stores.setdefault(_store(ledger, sweep), []).append(sweep.sweep_id)
    codes = []
    for store, ids in stores.items():  # in the environment: `ps` shows arguments to all, and a URI may hold a password
        environment = {**imports.environment(), **({"MLFLOW_TRACKING_URI": store} if store else {})}
        codes.append(subprocess.run(shipping(ledger.home, "--sweep", *ids), env=environment, check=False).returncode)
    return max(codes)


def _store(ledger: Ledger, sweep: Sweep) -> str:
    """`tracker.uri` of a sweep's launch, which all its runs have; "": none was named, then the environment decides."""
    for run_id in sweep.run_ids:
        try:
            return str(read_config(ledger.run_dir(run_id))["tracker"]["uri"] or "")
        except Unreadable:  # the shipper names it
            continue
    return ""
