"""Ray's processes on one node of a job: they are started beside its ranks and end with them.

`python -m rlvr.rollout.ray_node HOST:PORT NODE RANKS PLACES DIRECTORY PARENT` becomes them: node 0 listens there, the
others go there. Who speaks to Ray knows a token, which is in the environment. At an address of loopback it listens on
that alone, else on every interface. Imports no Ray, which reads what is set here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rlvr.rollout.broadcast import LOOPBACK, ip_towards
from rlvr.rollout.child import NOT_FOR_A_CHILD

ADDRESS = "RLVR_RAY"  # in the environment of a rank: where the Ray of its job listens
TOKEN = "RAY_AUTH_TOKEN"
NODE_LABEL = "rlvr-node"  # of a node of Ray: its number among those of the job
STORE_BYTES = 2**28  # of Ray's shared memory on a node: messages and pieces of the weights pass through it
LOOK_S = 1.0
MEET_S = 600.0  # for a node to begin, or to come back
SILENT_LOOKS = 5  # in a row, after which the first node is gone
GRACE_S = 20.0
LAST_LINES = 20
RESTARTS = 20  # of a node that has no ranks
PR_SET_PDEATHSIG = 1


class NoPlace(RuntimeError):
    """The node of a worker is lost and no other has room for it."""


def guarded(address: str) -> dict[str, str]:
    """What Ray reads from the environment, in its own processes and in ours, beside the token."""
    return {
        "RAY_AUTH_MODE": "token",  # loopback is everyone's on this machine, and Ray runs what it is sent
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it would kill our actors for the memory that others of the node take
        "RAY_worker_niceness": "0",  # else vLLM has what other processes of the node leave of its cores
        "RAY_health_check_period_ms": "1000",  # a node that refuses five checks in a row is lost
        # "0": it listens on loopback alone, "1": on every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(not is_loopback(address))),
    }


def is_loopback(address: str) -> bool:
    return address.split(":")[0] == LOOPBACK


def new_token() -> str:
    return secrets.token_hex(32)


def free_address(host: str = LOOPBACK) -> str:
    """HOST:PORT that is free now; a port that is taken meanwhile costs a try."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


class RayNode:
    """The Ray of this node, as the child of this process: what is closed, or outlived, leaves no process behind."""

    def __init__(self, address: str, node: int, ranks: int, places: int) -> None:
        """ranks: of this node; they have its first GPUs. places: for workers, on a node without GPUs."""
        self.address, self._words = address, [str(number) for number in (node, ranks, places)]
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = ""
        self._start()

    def _start(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="rlvr-ray-")  # of sockets: its name must be short
        words = [self.address, *self._words, self._directory, str(os.getpid())]
        # As of a Child: ranks that are asked to stop finish their step, and need it for that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_A_CHILD)
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*_python("rlvr.rollout.ray_node"), *words],
                    env={**os.environ, **guarded(self.address)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def _log(self) -> Path:
        return Path(self._directory) / "ray.log"

    def serve(self, told_to_stop: Callable[[], bool]) -> int:
        """On a node without ranks: until the first node's Ray is gone. What is lost here meanwhile is started again.

        A signal to stop comes to all nodes of a job; ranks that finish their step need this one until they are done.
        Returns an exit code: 1 if the first node was never there, or what is started here does not stay.
        """
        began, met, silent, restarts = time.monotonic(), False, 0, 0
        while silent < SILENT_LOOKS and (met or not told_to_stop()):
            if listens(self.address):
                met, silent = True, 0
                restarts += self._restarted()
            elif met:
                silent += 1
            if restarts > RESTARTS or (not met and time.monotonic() - began > MEET_S):
                return 1
            time.sleep(LOOK_S)
        return 0

    @property
    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip() and "[state-dump]" not in line][-LAST_LINES:])

    def _restarted(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return False
        print(f"Ray of this node has ended and is started again: {self.last_words}", file=sys.stderr, flush=True)
        self.close()
        self._start()
        return True

    def close(self) -> None:
        if self._process is not None:
            _kill_family(self._process)
            self._process = None
            shutil.rmtree(self._directory, ignore_errors=True)


def _kill_family(process: subprocess.Popen[bytes]) -> None:
    """Ray's workers are in sessions of their own, and end a moment after those that started them."""
    family = [psutil.Process(process.pid)] if process.poll() is None else []
    for each in family[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += each.children(recursive=True)
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family, timeout=GRACE_S)


def listens(address: str) -> bool:
    """Does anybody there?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LOOK_S).close()
    except OSError:
        return False
    return True


def _python(module: str) -> list[str]:
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", module]


def command(address: str, node: int, gpus: int, places: int, directory: str) -> list[str]:
    """`ray start`, which stays until it is killed. gpus: left to workers, if this node has some at all."""
    if node:
        where = [f"--address={address}"]
    else:
        port = address.rpartition(":")[2]
        where = ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
    return [
        *_python("ray.scripts.scripts"),
        *("start", "--block"),
        *where,
        f"--node-ip-address={ip_towards(address)}",
        f"--num-gpus={gpus}",
        f"--num-cpus={places}",
        f"--labels={NODE_LABEL}={node}",
        f"--temp-dir={directory}",
        f"--object-store-memory={STORE_BYTES}",
        "--include-log-monitor=false",
    ]


def without_client(parameters: Any, _head: bool) -> None:
    """Of `ray start`, which has no option for it: no server of Ray's client, at a port that is always the same."""
    parameters.ray_client_server_port = None


def main() -> None:
    address, directory, parent = sys.argv[1], sys.argv[5], int(sys.argv[6])
    node, ranks, places = map(int, sys.argv[2:5])
    if sys.platform == "linux":  # as its processes will with it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    from rlvr.rollout.node import visible_gpus  # torch: it counts them

    own = visible_gpus()
    left = own[ranks:]
    if own:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(left)
    began = time.monotonic()
    while node and not listens(address):
        if time.monotonic() - began > MEET_S:
            sys.exit(f"nobody listens at {address}")
        time.sleep(LOOK_S)
    os.environ["RAY_START_HOOK"] = f"rlvr.rollout.ray_node.{without_client.__name__}"
    words = command(address, node, len(left), len(left) if own else places, directory)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
