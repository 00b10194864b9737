"""The processes of a cluster, found among all processes: pid files are wrong after a crash, as pids are reused."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

TAG = "RLVR_LOCAL_CLUSTER"  # in the environment of every daemon: the root directory of its cluster
# In the order in which they are stopped: a controller that runs longer than its nodes would requeue their jobs.
DAEMONS = ("slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "slurmdbd", "mariadbd", "munged")
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # in a container process 1 may not reap zombies


def daemons(root: Path, kind: str | None = None) -> list[int]:
    """Live daemons of the cluster in `root`: all, or of one kind."""
    running = (process for process in psutil.process_iter(["name", "status"]) if process.info["status"] not in ENDED)
    named = [process for process in running if process.info["name"] in DAEMONS]
    return [process.pid for process in named if kind in (None, process.info["name"]) and _owns(root, process)]


def jobs(root: Path) -> list[int]:
    """Processes that run as jobs of this cluster."""
    processes = psutil.process_iter(["environ"])
    environments = {process.pid: process.info["environ"] or {} for process in processes if process.pid != os.getpid()}
    conf = f"{root}/slurm.conf"
    return [pid for pid, env in environments.items() if env.get("SLURM_CONF") == conf and "SLURM_JOB_ID" in env]


def stop(pids: Iterable[int], patience_s: float = 10.0) -> None:
    """Send SIGTERM, then SIGKILL."""
    left = list(pids)
    for number, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)


def start(command: Sequence[str], root: Path, log: Path, database_socket: Path) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, with an environment that contains nothing of the caller's."""
    environment = {
        TAG: str(root),
        "SLURM_CONF": f"{root}/slurm.conf",
        "MYSQL_UNIX_PORT": str(database_socket),
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            list(command),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in ENDED
    except psutil.NoSuchProcess:
        return False


def _owns(root: Path, process: psutil.Process) -> bool:
    """Whether a process belongs to the cluster in `root`, by its environment, arguments or open files. (slurmstepd
    overwrites its arguments and environment with its title, but keeps its log open.)
    """
    with contextlib.suppress(psutil.Error):
        if process.environ().get(TAG) == str(root) or any(f"{root}/" in word for word in process.cmdline()):
            return True
    with contextlib.suppress(psutil.Error):
        return any(file.path.startswith(f"{root}/") for file in process.open_files())
    return False
