"""`python -m tests.slurm.local_cluster up | down | status`: a real SLURM on this machine, in one directory."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.slurm.local_cluster import cluster, processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 for success, 1 if `status` finds nothing running, 2 for an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.local_cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="up | down | status")
    for name, text in (
        ("up", "start it (needs root; installs Debian's packages if they are missing)"),
        ("down", "stop it and all jobs on it"),
        ("status", "nodes and jobs"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--dir", type=Path, default=cluster.ROOT, help=f"its directory (default {cluster.ROOT})")
        if name == "up":
            command.add_argument("--nodes", type=int, default=4, help="virtual nodes, 4 CPUs and 2 fake GPUs each")
    options = parser.parse_args(arguments)
    try:
        return {"up": _up, "down": _down, "status": _status}[options.command](options)
    except ValueError as error:
        print(f"local cluster: {error}", file=sys.stderr)
        return 2


def _up(options: argparse.Namespace) -> int:
    began = time.monotonic()
    settings = cluster.up(options.dir, nodes=options.nodes)
    seconds = time.monotonic() - began
    print(f"{settings.nodes} nodes are up after {seconds:.1f} s. Partitions: main, preemptible, urgent.")
    print("To use it:\n")
    print(f"  export SLURM_CONF={settings.conf}\n")
    print("To stop it: make cluster-down")
    return 0


def _down(options: argparse.Namespace) -> int:
    count = cluster.down(options.dir)
    print(f"Stopped: {count} processes ended." if count else "Nothing was running.")
    return 0


def _status(options: argparse.Namespace) -> int:
    settings = cluster.read(options.dir)
    if settings is None or not processes.daemons(settings.root):
        print("Not running. Start it with: make cluster-up")
        return 1
    print(f"export SLURM_CONF={settings.conf}")
    print(cluster.client(settings, "sinfo"), end="")
    print(cluster.client(settings, "squeue"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
