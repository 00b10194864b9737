"""The last job of a sweep on SLURM: `python -m sweeps.slurm.job_of_report runs/sweeps/SWEEP`.

It starts when all jobs of the sweep have left the queue for good, ships the metrics that MLflow lacks and rebuilds the
study's tables and figures. A failed run does not stop it: a report names the runs that are missing. In a growing sweep
it is the last job of a wave: it decides, and submits the next wave with a report job of its own.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.sweeps import Ledger, grows
from sweeps.growing.controller import has_results
from sweeps.slurm.waves import continued
from sweeps.sync import tracker_of
from sweeps.worker import shipper_command

SHIP_S = 1200.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of `python -m analysis`; 1 if not all metrics could be shipped to MLflow."""
    directory = Path((sys.argv[1:] if arguments is None else arguments)[0])
    home, sweep_id = layout.home_of(directory), directory.name
    ledger = Ledger(home)
    sweep = ledger.sweep(sweep_id)
    tracker = tracker_of(ledger, sweep)
    shipped = ship(home, sweep_id, tracker.get("uri")) if tracker.get("enabled") else True
    if grows(sweep.info) and has_results(home, sweep_id) and not continued(home, sweep_id, "--unless-cancelled"):
        print("The next wave was not submitted: repeat the launch, or `python -m sweeps retry`.", flush=True)
    command = imports.python_command("-m", "analysis", "--home", str(home), "--study", sweep.study)
    built = subprocess.run(command, env=imports.child_environment(), check=False).returncode
    return built or (0 if shipped else 1)


def ship(home: Path, sweep_id: str, uri: str | None) -> bool:
    """Ship the sweep's metrics to MLflow. Returns whether all of them were shipped."""
    try:
        command = shipper_command(home, "--sweep", sweep_id, uri=uri)
        code = subprocess.run(command, env=imports.child_environment(), timeout=SHIP_S, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 124
    if code:
        print("Not all metrics are shipped yet: `python -m sweeps sync` ships the rest", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
