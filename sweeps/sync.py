"""`python -m sweeps sync`: what launches could not ship goes to the stores that they named."""

from __future__ import annotations

import subprocess

import yaml

from rlvr.config import imports
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
    """`tracker.uri` of a sweep's launch; "": none was named, then the environment or a file decide."""
    if not sweep.run_ids:
        return ""
    config = yaml.safe_load((ledger.run_dir(sweep.run_ids[0]) / "config.yaml").read_text(encoding="utf-8"))
    return str((config.get("tracker") or {}).get("uri") or "")
