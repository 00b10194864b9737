"""One run on several nodes: each node has a task of the job, and the tasks start and end their processes together.

The task of the first node leads: it starts each try, evaluates it and writes the ledger as for a run on one node. The
others follow. They communicate by files on the file system that holds the runs: T.json: the address of the first node's
first rank in try T, and that of Ray if the run uses it; T.N.json: how the processes of node N ended in try T;
over.json: there will be no other try. The last nodes may have no ranks; the end of their processes does not end those
of others.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rlvr.ledger.files import read_json, write_json
from slurm.supervise import ProcessEnd, Supervisor
from sweeps.worker import environment, kill_tagged, new_tag

LOOK_S = 0.5
FAREWELL_S = 60.0  # after the processes of one node have failed, those of the others are killed, which wait for them

Start = Callable[[Sequence[str]], Sequence[str]]  # options of rlvr.job.ranks -> command


class Nodes:
    """The nodes of a job since its last start, as one of their tasks uses them."""

    def __init__(self, folder: Path, node: int, count: int, supervisor: Supervisor, *, sampling: int = 0) -> None:
        """node: index of this node; count: of nodes; sampling: how many of them, the last ones, have no ranks."""
        self.folder, self.node, self.count, self.supervisor = folder, node, count, supervisor
        self.training, self.sampling = count - sampling, sampling
        self.tries = 0
        folder.mkdir(exist_ok=True)

    def lead(self, start: Start, env: Mapping[str, str], hangs: Callable[[], bool]) -> ProcessEnd:
        """Start one more try on all nodes, and wait for its end.

        env: of this node's processes. hangs: called regularly; if it returns True, they are killed.
        """
        self.tries += 1
        # Both ports are free now. If another process takes one before it is used, this try fails.
        with socket.socket() as rank_socket, socket.socket() as ray_socket:
            rank_socket.bind(("", 0))
            ray_socket.bind(("", 0))
            port, ray_port = rank_socket.getsockname()[1], ray_socket.getsockname()[1]
        ip = own_ip()
        write_json(self._file(), {"host": ip, "port": port, "ray": f"{ip}:{ray_port}"})
        status = self._run(start, env, hangs).status
        deadline = time.monotonic() + 2 * FAREWELL_S
        ends = self._ends()
        while len(ends) < self.training and self.supervisor.stop_signal is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            ends = self._ends()
        return ProcessEnd(status, out_of_memory=any(end["out_of_memory"] for end in ends))

    def follow(self, start: Start, threads: int) -> None:
        """Take part in every try of the first node, until `over` is called there."""
        while self._next_try():
            tag = new_tag()
            self._run(start, environment(threads, tag), hangs=lambda: False)
            kill_tagged(tag)

    def over(self) -> None:
        """Let the other nodes know that there will be no other try."""
        write_json(self.folder / "over.json", {"tries": self.tries})

    def _next_try(self) -> bool:
        """Wait for the next try of the first node. False if there will be none."""
        self.tries += 1
        while not self._file().exists():
            if (self.folder / "over.json").exists():
                return False
            time.sleep(LOOK_S)
        return True

    def _run(self, start: Start, env: Mapping[str, str], hangs: Callable[[], bool]) -> ProcessEnd:
        addresses = read_json(self._file())
        assert addresses is not None
        place = {"nodes": self.training, "node": self.node, "meet": f"{addresses['host']}:{addresses['port']}"}
        place |= {"sampling": self.sampling, "ray": addresses.get("ray", "")}
        failure_seen: float | None = None  # time at which a failure on another node was first seen

        def should_kill() -> bool:
            nonlocal failure_seen
            if failure_seen is None and any(end["status"] for end in self._ends()):
                failure_seen = time.monotonic()
            return hangs() or (failure_seen is not None and time.monotonic() - failure_seen > FAREWELL_S)

        command = start([f"--{name}={value}" for name, value in place.items()])
        ended = self.supervisor.run(command, env, ranks=self.count, should_kill=should_kill)
        write_json(self._file(f".{self.node}"), {"status": ended.status, "out_of_memory": ended.out_of_memory})
        return ended

    def _ends(self) -> list[dict[str, Any]]:
        """The ends of this try on those nodes with ranks where it has ended."""
        ends = (read_json(self._file(f".{node}")) for node in range(self.training))
        return [end for end in ends if end is not None]

    def _file(self, suffix: str = "") -> Path:
        return self.folder / f"{self.tries}{suffix}.json"


def own_ip() -> str:
    """The address by which other nodes reach this one: that of the interface which is set for gloo or NCCL, else that
    of its host name, else that of the interface with the default route.
    """
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for address in psutil.net_if_addrs().get(os.environ.get(name, ""), []):
            if address.family == socket.AF_INET:
                return address.address
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # an address reserved for documentation; nothing is sent
        return route.getsockname()[0]
    return "127.0.0.1"
