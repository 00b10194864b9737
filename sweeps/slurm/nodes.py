"""One run on several nodes: a task of the job on each, which start and end their processes together.

The task of the first node leads: it tries, decides and writes the ledger as it would alone. The others follow. They
meet in files, on the file system that holds the runs: T.json, where the first node's first rank listens in try T, and
Ray if the run has one; T.N.json, how the processes of node N ended; over.json, there will be no other try. The last
nodes may have no ranks: what ends there ends nothing elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rlvr.ledger.files import read_json, write_json
from slurm.supervise import Ended, Supervisor
from sweeps.worker import environment, kill_tagged, new_tag

LOOK_S = 0.5
FAREWELL_S = 60.0  # when the processes of one node have failed, those of others wait for them in vain

Start = Callable[[Sequence[str]], Sequence[str]]  # options of rlvr.job.ranks -> command


class Nodes:
    """The nodes of one start of a job, seen from one of them."""

    def __init__(self, folder: Path, node: int, count: int, supervisor: Supervisor, *, sampling: int = 0) -> None:
        """sampling: of `count`, those without ranks."""
        self.folder, self.node, self.count, self.supervisor = folder, node, count, supervisor
        self.training, self.sampling = count - sampling, sampling
        self.tries = 0
        folder.mkdir(exist_ok=True)

    def lead(self, start: Start, around: Mapping[str, str], hangs: Callable[[], bool]) -> Ended:
        """One more try, on all nodes; `around`: environment of this node's processes. hangs: asked; kill them if so."""
        self.tries += 1
        with socket.socket() as probe, socket.socket() as other:  # free now: a port that is taken meanwhile costs a try
            probe.bind(("", 0))
            other.bind(("", 0))
            port, ray = probe.getsockname()[1], other.getsockname()[1]
        ip = own_ip()
        write_json(self._file(), {"host": ip, "port": port, "ray": f"{ip}:{ray}"})
        status = self._run(start, around, hangs).status
        deadline = time.monotonic() + 2 * FAREWELL_S
        while (
            len(ends := self._ends()) < self.training and self.supervisor.told is None and time.monotonic() < deadline
        ):
            time.sleep(LOOK_S)
        return Ended(status, out_of_memory=any(end["out_of_memory"] for end in ends))

    def follow(self, start: Start, threads: int) -> None:
        """Take part in every try of the first node, until it says that there will be no other."""
        while self._is_called():
            tag = new_tag()
            self._run(start, environment(threads, tag), hangs=lambda: False)
            kill_tagged(tag)

    def over(self) -> None:
        write_json(self.folder / "over.json", {"tries": self.tries})

    def _is_called(self) -> bool:
        self.tries += 1
        while not self._file().exists():
            if (self.folder / "over.json").exists():
                return False
            time.sleep(LOOK_S)
        return True

    def _run(self, start: Start, around: Mapping[str, str], hangs: Callable[[], bool]) -> Ended:
        at = read_json(self._file())
        assert at is not None
        place = {"nodes": self.training, "node": self.node, "meet": f"{at['host']}:{at['port']}"}
        place |= {"sampling": self.sampling, "ray": at.get("ray", "")}
        failed: list[float] = []  # when we saw that another node's processes have failed

        def in_vain() -> bool:
            if not failed and any(end["status"] for end in self._ends()):
                failed.append(time.monotonic())
            return hangs() or (bool(failed) and time.monotonic() - failed[0] > FAREWELL_S)

        command = start([f"--{name}={value}" for name, value in place.items()])
        ended = self.supervisor.run(command, around, ranks=self.count, in_vain=in_vain)
        write_json(self._file(f".{self.node}"), {"status": ended.status, "out_of_memory": ended.out_of_memory})
        return ended

    def _ends(self) -> list[dict[str, Any]]:
        """Of this try, on the nodes with ranks where it has ended."""
        ends = (read_json(self._file(f".{node}")) for node in range(self.training))
        return [end for end in ends if end is not None]

    def _file(self, of: str = "") -> Path:
        return self.folder / f"{self.tries}{of}.json"


def own_ip() -> str:
    """The address by which other nodes reach this one: of the interface that gloo or NCCL are given, else of its name,
    else of the route out.
    """
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for address in psutil.net_if_addrs().get(os.environ.get(name, ""), []):
            if address.family == socket.AF_INET:
                return address.address
    with contextlib.suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
        if not named.startswith("127."):
            return named
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # of nobody, and nothing is sent
        return route.getsockname()[0]
    return "127.0.0.1"
