"""Compares the resources of jobs with those of the cluster, before anything is submitted.

sbatch itself accepts many jobs that no node can ever run, and leaves them waiting.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm import client
from slurm.submit import Resources

MINUTES = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
# Options of sbatch that a launch sets itself -> advice.
OWN = {
    **{name: f"pass cluster.{name}=..." for name in ("partition", "account", "qos", "nodes")},
    "time": "pass cluster.time_min=...",
    "mem": "pass cluster.memory_gb=...",
    "cpus-per-task": "pass cluster.cpus=...",
    "gpus-per-node": "pass cluster.gpus=...",
    "array": "pass cluster.max_parallel=... for `%`.",
    **dict.fromkeys(
        ("job-name", "output", "error", "dependency", "requeue", "signal", "ntasks-per-node", "open-mode"),
        "the launch needs it for itself. Drop it.",
    ),
}


@dataclass(frozen=True)
class Node:
    """One node as a member of one partition."""

    partition: str
    is_default: bool  # whether the partition is the default
    cpus: int
    memory_gb: float  # 0: not known
    gpus: int
    time_min: float  # time limit of the partition


def nodes() -> list[Node]:
    """Every node of every partition, in one call of sinfo."""
    members: list[Node] = []
    for line in client.call("sinfo", "-a", "-h", "-N", "-o", "%P|%c|%m|%G|%l").splitlines():
        if line.count("|") != 4:  # of the site
            continue
        partition, cpus, memory, gres, limit = line.split("|")
        gpus = sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres))
        megabytes = int(memory.rstrip("+"))
        name, default = partition.rstrip("*"), partition.endswith("*")
        memory_gb = megabytes / 1024 if megabytes > 1 else 0.0
        members.append(Node(name, default, int(cpus.rstrip("+")), memory_gb, gpus, _minutes(limit)))
    return members


def _minutes(limit: str) -> float:
    """Minutes of a time limit such as `2-00:00:00`, `30:00` or `infinite`."""
    if (match := MINUTES.fullmatch(limit)) is None:
        return float("inf")
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def check(asked: Resources, there: Sequence[Node]) -> None:
    """ValueError if the nodes of the partition can never run a job of these resources. there: result of `nodes`."""
    for option in asked.options:
        if (name := option.replace("_", "-")) in OWN:
            raise ValueError(f"cluster.sbatch.{option}: {OWN[name]}")
    default_first = sorted({(not node.is_default, node.partition) for node in there})  # the order of sinfo varies
    names = [name for _, name in default_first]
    wanted = asked.partition.split(",") if asked.partition else [n.partition for n in there if n.is_default][:1]
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(
            f"cluster.partition={unknown[0]} does not exist here. Partitions: {', '.join(names)}. "
            f"Pass cluster.partition={names[0] if names else '...'}."
        )
    members = [node for node in there if node.partition in wanted]
    if not members:  # there is no default partition: sbatch reports that
        return
    if sum(_fits(node, asked) for node in members) < asked.nodes:
        raise ValueError(f"{_excess(asked, members)} `sinfo` lists what there is.")
    longest = max(node.time_min for node in members)
    if asked.time_min > longest:
        raise ValueError(
            f"cluster.time_min={asked.time_min} is more than partition {','.join(wanted)} allows: {longest:.0f}. "
            f"Pass cluster.time_min={longest:.0f}: a run that needs more continues from its checkpoint in the next job."
        )


def _fits(node: Node, asked: Resources) -> bool:
    has_memory = not node.memory_gb or asked.memory_gb <= node.memory_gb
    return has_memory and asked.cpus <= node.cpus and asked.gpus <= node.gpus


def _excess(asked: Resources, members: Sequence[Node]) -> str:
    """Which amount is too large for all of these nodes, and the largest possible; else that the combination is."""
    where = f"partition {','.join(dict.fromkeys(node.partition for node in members))}"
    most = {
        "cpus": max(node.cpus for node in members),
        "gpus": max(node.gpus for node in members),
        "memory_gb": max(node.memory_gb for node in members) or float("inf"),
    }
    for name, limit in most.items():
        if getattr(asked, name) > limit:
            value = int(limit * 10) / 10
            return (
                f"A job would need {name}={getattr(asked, name):g} on a node, but no node of {where} has more than "
                f"{value:g}. Pass a smaller cluster.{name} (with cluster.pack fewer runs a job), or another "
                "cluster.partition."
            )
    amounts = f"{asked.cpus} CPUs, {asked.gpus} GPUs and {asked.memory_gb:g} GB"
    num_fit = sum(_fits(node, asked) for node in members)
    need = f"A job would need {asked.nodes} nodes with {amounts} each"
    return f"{need}, but {num_fit} of {len(members)} of {where} have them."
