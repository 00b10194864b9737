"""A sweep that is larger than the queue may be: its own jobs submit the rest of it, each at its end.

runs/sweeps/<id>/waves.json   {"runs": [...]}: what is to be submitted when the queue has room: these runs, and after
                              the last of them the report's job. Without the file nothing is left.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.sweeps import Ledger


def read(ledger: Ledger) -> dict[str, list[str]]:
    """The runs that wait, by sweep; [] where only the report does."""
    contents = {path.name: read_json(layout.waves(path)) for path in layout.sweeps(ledger.home).glob("*")}
    return {name: content["runs"] for name, content in contents.items() if content and "runs" in content}


def write(ledger: Ledger, sweep_id: str, waiting: Sequence[str] | None) -> None:
    """Record which runs wait for room, and after them the report; None: nothing. Hold the submitter's lock."""
    path = layout.waves(ledger.sweep_dir(sweep_id))
    if waiting is None:
        path.unlink(missing_ok=True)
    else:
        write_json(path, {"runs": list(waiting)})


def waiting_for_room(ledger: Ledger) -> dict[str, str]:
    """The sweep of each run that is to be submitted when there is room."""
    return {run_id: sweep_id for sweep_id, waiting in read(ledger).items() for run_id in waiting}


def submit_more(ledger: Ledger) -> None:
    """Called by a job at its end: submit what waits for room."""
    for sweep_id in read(ledger):
        if not continued(ledger.home, sweep_id, "--waiting"):
            print(f"runs of sweep {sweep_id} still wait for room in the queue", flush=True)


def continued(home: Path, sweep_id: str, option: str) -> bool:
    """Run `python -m sweeps retry` for a sweep from one of its jobs; returns whether it succeeded.

    In a process of its own: it imports the components of these runs, whose errors must not become the end of this job.
    Without the SLURM_ variables of this job, which sbatch would pass on to the next.
    """
    environment = {
        k: v for k, v in imports.child_environment().items() if k == "SLURM_CONF" or not k.startswith("SLURM_")
    }
    command = imports.python_command("-m", "sweeps", "retry", sweep_id, option, "--home", str(home))
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0
