"""What all jobs of a sweep have in common: their resources and account, and the entry point on a node."""

import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.config.engine import gpus_of_workers
from rlvr.config.nodes import ranks_of_node
from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.runs import Unreadable
from rlvr.ledger.sweeps import Ledger
from slurm.submit import BEGAN, Resources
from slurm.supervise import Allocation, Supervisor
from sweeps.slurm import submissions

# Shell: 64 random hexadecimal digits, drawn when the job starts. Only the job's nodes know them; no file contains them.
RANDOM = "$(od -vAn -N32 -tx1 /dev/urandom | tr -d '[:space:]')"


def cpus(cluster: Mapping[str, Any], engines: int = 0) -> int:
    """CPUs of a run on each of its nodes: `cluster.cpus`, else a core for each thread of its ranks and of its engine
    processes, and one for verifiers. engines: number of vLLM's own processes, one for each of their GPUs.
    """
    if num_sampling := cluster["sampling_nodes"]:
        processes = max(ranks_of_node(cluster), math.ceil(engines / num_sampling))
        return cluster["cpus"] or cluster["threads"] * processes + 1
    return cluster["cpus"] or cluster["threads"] * (cluster["ranks"] + engines) // cluster["nodes"] + 1


def cluster_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The group `cluster` of a run's config, with its number of CPUs filled in."""
    beside_ranks = config["cluster"]["ranks"] if "python" in config["rollout"]["engine"] else 0
    workers = gpus_of_workers(config["rollout"]["engine"])
    cluster = config["cluster"]
    return {**cluster, "cpus": cpus(cluster, workers or beside_ranks), "ray": bool(workers)}


def of_runs(cluster: Mapping[str, Any]) -> Resources:
    """The resources of a job of `cluster.pack` runs side by side, which share its GPUs."""
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
    """Resources with these amounts, and with the partition, account and site settings of the runs."""
    shared = {key: cluster[key] for key in ("partition", "account", "qos", "environment", "scratch")}
    return Resources(**amounts, **shared, setup=tuple(cluster["setup"]), options=cluster["sbatch"])


def python(settings: Mapping[str, Any]) -> list[str]:
    """The words that start Python for a run on a node: this Python, or that of the container."""
    container = settings["container"]
    return [*shlex.split(container), "python", "-P"] if container else [sys.executable, "-P"]


def has_begun(*, yes: bool = True) -> None:
    """Let the job's script know whether its program has begun on this node: it sends the job elsewhere if not."""
    if (path := Path(os.environ.get(BEGAN) or os.devnull)).is_file():  # missing on nodes but the first
        path.write_text("yes" if yes else "")


class SlurmJob:
    """The process of a job on a node: its submission and allocation, and the ledger."""

    def __init__(self, submission: Path, supervisor: Supervisor) -> None:
        self.submission, self.settings = submission, submissions.read(submission)
        self.supervisor, self.here = supervisor, Allocation.here()
        self.ledger = Ledger(layout.home_of(submission))
        has_begun()
        submissions.record_job(submission, self.here.number)

    def run(self) -> int:
        """Do the work. Returns the exit code, one of rlvr/ledger/cause.py."""
        raise NotImplementedError


def on_node(job: type[SlurmJob], *, usage: str | None) -> int:
    """Entry point of `python -m MODULE SUBMISSION`, under a supervisor for SLURM's signals. Returns the exit code."""
    if len(sys.argv) != 2:
        print(usage)
        return 2
    with Supervisor() as supervisor:
        try:
            return job(Path(sys.argv[1]), supervisor).run()
        except Unreadable as error:  # submitted by another version
            print(error, flush=True)
            return Cause.USER_ERROR.code
