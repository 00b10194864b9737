"""Simulated nodes on this machine: each has a network of its own and sees only its own processes. Needs root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

# /proc shows no processes of other nodes, so that their memory cannot be reached.
OWN_PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Node:
    """A simulated node, without access to other networks."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.ip = name, f"10.77.0.{number + 1}"
        self.interface = f"eth{number}"  # beside its loopback device; names differ between nodes, as on real ones

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *OWN_PROCESSES, *words]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def can_be() -> bool:
    try:
        with nodes(1) as (node,):
            return subprocess.run(node.command(["true"]), capture_output=True, check=False).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """Context with nodes that reach one another over a switch in the first node's network."""
    all_nodes = [Node(f"rlvr-{os.getpid()}-{number}", number) for number in range(count)]
    first = all_nodes[0].name
    try:
        for node in all_nodes:
            _ip("netns", "add", node.name)
        _ip("-n", first, "link", "add", "switch", "type", "bridge")
        _ip("-n", first, "link", "set", "switch", "up")
        for number, node in enumerate(all_nodes):
            port = f"port{number}"
            _ip("-n", first, "link", "add", port, "type", "veth", "peer", "name", node.interface, "netns", node.name)
            _ip("-n", first, "link", "set", port, "master", "switch", "up")
            _ip("-n", node.name, "address", "add", f"{node.ip}/24", "dev", node.interface)
            for link in ("lo", node.interface):
                _ip("-n", node.name, "link", "set", link, "up")
        yield all_nodes
    finally:
        for node in all_nodes:
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, check=False)
