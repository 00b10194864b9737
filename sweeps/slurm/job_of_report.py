"""The last job of a sweep on SLURM: `python -m sweeps.slurm.job_of_report runs/sweeps/SWEEP [--ship]`.

It starts when every job of the sweep has left the queue for good, ships what MLflow lacks and rebuilds the study's
tables and figures. A failed run does not stop it: a report names the runs that are missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.sweeps import Ledger
from sweeps.worker import shipping

SHIP_S = 1200.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of `python -m analysis`; 1 if MLflow did not get everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, metavar="runs/sweeps/SWEEP")
    parser.add_argument("--ship", action="store_true", help="ship metrics to MLflow first")
    options = parser.parse_args(arguments)
    home, sweep_id = layout.home_of(options.sweep), options.sweep.name
    shipped = ship(home, sweep_id) if options.ship else True
    study = Ledger(home).sweep(sweep_id).study
    command = imports.python("-m", "analysis", "--home", str(home), "--study", study)
    built = subprocess.run(command, env=imports.environment(), check=False).returncode
    return built or (0 if shipped else 1)


def ship(home: Path, sweep_id: str) -> bool:
    """Did MLflow get everything? `python -m sweeps sync` ships the rest any time."""
    try:
        command = shipping(home, "--sweep", sweep_id)
        code = subprocess.run(command, env=imports.environment(), timeout=SHIP_S, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 124
    if code:
        print("MLflow has not got everything: `python -m sweeps sync` ships the rest", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
