"""Ray's processes on one node of a job: they are started beside its ranks and end with them.

`python -m rlvr.rollout.ray_node HOST:PORT NODE RANKS PLACES DIRECTORY PARENT` is replaced by them: node 0 listens at
that address, the others connect to it. Clients of Ray need a token, which is in the environment. If the address is
on loopback, Ray listens there only, else on every interface. This module does not import Ray, as Ray reads settings
made here on import.
"""

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
from rlvr.rollout.child import signals_blocked

ADDRESS = "RLVR_RAY"  # environment variable of a rank: the address of its job's Ray
TOKEN = "RAY_AUTH_TOKEN"
NODE_LABEL = "rlvr-node"  # label of a node of Ray: its number in the job
STORE_BYTES = 2**28  # of Ray's shared memory on a node, which messages pass through
POLL_S = 1.0
NODE_TIMEOUT_S = 600.0  # for a node to start
# Characters of a directory for RayNode's: a socket's path has 107 at most, and "/rlvr-ray-xxxxxxxx" and Ray's
# "/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store" follow.
LONGEST_PARENT = 107 - 18 - 64
GONE_S = 10.0  # the first node is done or lost if it accepts no connection for so long; Ray knows it even earlier
GRACE_S = 20.0
LAST_LINES = 20
PR_SET_PDEATHSIG = 1


def ray_environment(address: str) -> dict[str, str]:
    """Environment variables for Ray, in its own processes and in ours, in addition to the token."""
    return {
        "RAY_AUTH_MODE": "token",  # every user of this machine can reach loopback, and Ray executes what it receives
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it would kill our actors when other processes of the node use memory
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0",  # a shell's "1" would give every worker the first GPU
        "RAY_worker_niceness": "0",  # otherwise vLLM gets only the CPU time that other processes of the node leave
        "RAY_health_check_period_ms": "1000",  # a node that fails five checks in a row is lost
        # "0": Ray listens on loopback alone, "1": on every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(not is_loopback(address))),
    }


def is_loopback(address: str) -> bool:
    return address.split(":")[0] == LOOPBACK


def new_token() -> str:
    return secrets.token_hex(32)


def free_address() -> str:
    """HOST:PORT on loopback that is free now. If the port is taken meanwhile, the attempt fails and is repeated."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{probe.getsockname()[1]}"


def directory_of_sockets() -> str:
    """A new private directory for Ray, in TMPDIR unless that path is too long for Ray's sockets."""
    parent = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="rlvr-ray-", dir=parent if len(parent) <= LONGEST_PARENT else "/tmp")


class RayNode:
    """The Ray of this node, a child of this process: nothing of it is left after `close` or our end."""

    def __init__(self, address: str, node: int, ranks: int, places: int) -> None:
        """ranks: number of ranks of this node, which use its first GPUs. places: for workers, if it has no GPUs."""
        self.address, self._directory = address, directory_of_sockets()
        arguments = [address, *map(str, (node, ranks, places)), self._directory, str(os.getpid())]
        command = [*_python_command("rlvr.rollout.ray_node"), *arguments]
        variables, none = {**os.environ, **ray_environment(self.address)}, subprocess.DEVNULL
        # As for a Child: ranks that are to stop finish their step, and need Ray for that.
        with signals_blocked(), self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=variables, stdin=none, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def _log(self) -> Path:
        return Path(self._directory) / "ray.log"

    def serve(self, is_stopping: Callable[[], bool]) -> int:
        """Keep Ray running on a node without ranks, until the first node's Ray is gone.

        A signal to stop is sent to all nodes of a job; ranks that finish their step need this node until they are
        done. Returns an exit code: 1 if the first node never answered, or if Ray ends here before.
        """
        reached_at: float | None = None
        began = time.monotonic()
        while reached_at is not None or not is_stopping():
            if answers(self.address):
                reached_at = time.monotonic()
                if self._process.poll() is not None:
                    print(f"Ray of this node has ended: {self.last_log_lines}", file=sys.stderr, flush=True)
                    return 1
            elif reached_at is not None and time.monotonic() - reached_at > GONE_S:
                return 0
            if reached_at is None and time.monotonic() - began > NODE_TIMEOUT_S:
                return 1
            time.sleep(POLL_S)
        return 0

    @property
    def last_log_lines(self) -> str:
        """The last lines of Ray's log, without its dumps of state."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip() and "[state-dump]" not in line][-LAST_LINES:])

    def close(self) -> None:
        _kill_family(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)


def _kill_family(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants. Ray's workers, in sessions of their own, would end some time later."""
    family = [psutil.Process(process.pid)] if process.poll() is None else []
    if family:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=GRACE_S)


def answers(address: str) -> bool:
    """Whether a process at the address accepts a connection."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=POLL_S).close()
    except OSError:
        return False
    return True


def _python_command(module: str) -> list[str]:
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", module]


def command(address: str, node: int, gpus: int, places: int, directory: str) -> list[str]:
    """The command `ray start`, which runs until it is killed. gpus: left to workers. places: counted by Ray as CPUs."""
    if node:
        role = [f"--address={address}"]
    else:
        port = address.rpartition(":")[2]
        role = ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
    here = (f"--node-ip-address={ip_towards(address)}", f"--num-gpus={gpus}", f"--num-cpus={places}")
    options = (f"--labels={NODE_LABEL}={node}", f"--temp-dir={directory}", f"--object-store-memory={STORE_BYTES}")
    ray = (*_python_command("ray.scripts.scripts"), "start", "--block")
    return [*ray, *role, *here, *options, "--include-log-monitor=false"]


def without_client(parameters: Any, _head: bool) -> None:
    """A hook for `ray start`, which has no option for this: start no server for Ray's client, whose port is fixed."""
    parameters.ray_client_server_port = None


def main() -> None:
    address, directory, parent = sys.argv[1], sys.argv[5], int(sys.argv[6])
    node, ranks, places = map(int, sys.argv[2:5])
    if sys.platform == "linux":  # Ray's processes end with this one
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # the parent ended before prctl took effect
    from rlvr.rollout.vllm_environment import visible_gpus  # imports torch, which counts the GPUs

    gpus = visible_gpus()
    worker_gpus = gpus[ranks:]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(worker_gpus)
    began = time.monotonic()
    while node and not answers(address):
        if time.monotonic() - began > NODE_TIMEOUT_S:
            sys.exit(f"no connection to {address} within {NODE_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)
    os.environ["RAY_START_HOOK"] = f"rlvr.rollout.ray_node.{without_client.__name__}"
    arguments = command(address, node, len(worker_gpus), len(worker_gpus) if gpus else places, directory)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
