"""What every job of a sweep has in common: who it is charged to, the command that runs this package on a node, and how
a job begins there.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlvr.config import imports
from rlvr.config.engine import gpus_of_workers
from rlvr.ledger.cause import Cause
from rlvr.ledger.runs import Unreadable
from slurm.submit import Resources
from slurm.supervise import Supervisor

# 64 hexadecimal digits, drawn by the script as the job starts: its nodes alone know them, no file does.
RANDOM = "$(od -vAn -N32 -tx1 /dev/urandom | tr -d '[:space:]')"


def cpus(cluster: Mapping[str, Any], engines: int = 0) -> int:
    """CPUs of a run on each of its nodes: as asked for, else a core for each thread of its ranks and of its `engines`,
    processes of vLLM's own, one for each GPU, and one for verifiers.
    """
    apart = cluster["sampling_nodes"]
    if apart:
        processes = max(cluster["ranks"] // (cluster["nodes"] - apart), math.ceil(engines / apart))
        return cluster["cpus"] or cluster["threads"] * processes + 1
    return cluster["cpus"] or cluster["threads"] * (cluster["ranks"] + engines) // cluster["nodes"] + 1


def cluster_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """`cluster` of a run's config, its CPUs counted."""
    beside_ranks = config["cluster"]["ranks"] if "python" in config["rollout"]["engine"] else 0
    workers = gpus_of_workers(config["rollout"]["engine"])
    cluster = {"sampling_nodes": 0, **config["cluster"]}  # a run frozen before there was such a knob has none
    return {**cluster, "cpus": cpus(cluster, workers or beside_ranks), "ray": bool(workers)}


def of_runs(cluster: Mapping[str, Any]) -> Resources:
    """What a job of `cluster.pack` runs side by side asks for. They share its GPUs."""
    pack = cluster["pack"]
    token = {"RAY_AUTH_TOKEN": RANDOM} if cluster["nodes"] > 1 and cluster.get("ray") else {}
    return resources(
        {**cluster, "environment": {**cluster["environment"], **token}},
        time_min=cluster["time_min"],
        cpus=cpus(cluster) * pack,
        memory_gb=cluster["memory_gb"] * pack,
        gpus=cluster["gpus"],
        nodes=cluster["nodes"],
    )


def resources(cluster: Mapping[str, Any], **amounts: Any) -> Resources:
    """These amounts, where and on whose account the runs go, and what a site needs for any job."""
    shared = {key: cluster[key] for key in ("partition", "account", "qos", "environment", "scratch")}
    return Resources(**amounts, **shared, setup=tuple(cluster["setup"]), options=cluster["sbatch"])


def command(module: str, target: Path) -> list[str]:
    """Run a module of this package, as the submitter sees it, wherever the job starts."""
    return ["env", f"PYTHONPATH={imports.environment()['PYTHONPATH']}", *imports.python("-m", module, str(target))]


def python(settings: Mapping[str, Any]) -> list[str]:
    """The words that start Python for a run on a node: this one, or that of the container."""
    container = settings["container"]
    return [*(shlex.split(container) if container else []), "python" if container else sys.executable, "-P"]


class Task(Protocol):
    """What a job does."""

    def run(self) -> int:
        """Exit code, one of rlvr/ledger/cause.py."""
        ...


def on_node(task: Callable[[Path, Supervisor], Task], *, usage: str | None) -> int:
    """`python -m MODULE SUBMISSION`, under a supervisor that hears the signals of SLURM; returns the exit code."""
    if len(sys.argv) != 2:
        print(usage)
        return 2
    with Supervisor() as supervisor:
        try:
            return task(Path(sys.argv[1]), supervisor).run()
        except Unreadable as error:  # handed in by another version
            print(error, flush=True)
            return Cause.USER_ERROR.code
