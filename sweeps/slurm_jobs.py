"""What every job of a sweep has in common: who it is charged to, and the command that runs this package on a node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm.submit import Resources


def cpus(cluster: Mapping[str, Any]) -> int:
    """CPUs of a run's job: as asked for, else a core for each thread and one for verifiers."""
    return cluster["cpus"] or cluster["threads"] * cluster["ranks"] + 1


def resources(cluster: Mapping[str, Any], **amounts: Any) -> Resources:
    """These amounts, where and on whose account the runs go."""
    shared = {key: cluster[key] for key in ("partition", "account", "qos")}
    return Resources(**amounts, **shared, setup=tuple(cluster["setup"]))


def command(module: str, target: Path) -> list[str]:
    """Run a module of this package, as the submitter sees it, wherever the job starts."""
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return ["env", f"PYTHONPATH={path}", sys.executable, "-m", module, str(target)]
