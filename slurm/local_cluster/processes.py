"""The processes of a cluster, found in /proc: pid files are wrong after a crash, as pids are reused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

TAG = "RLVR_LOCAL_CLUSTER"  # in the environment of every daemon: the root directory of its cluster
# In the order in which they are stopped: a controller that runs longer than its nodes would requeue their jobs.
DAEMONS = ("slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "slurmdbd", "mariadbd", "munged")


def daemons(root: Path, kind: str | None = None) -> list[int]:
    """Live daemons of the cluster in `root`: all, or of one kind."""
    return [
        pid for pid in _processes() if (name := _name(pid)) in DAEMONS and kind in (None, name) and _owns(root, pid)
    ]


def jobs(root: Path) -> list[int]:
    """Processes that run as jobs of this cluster."""
    conf = f"SLURM_CONF={root}/slurm.conf".encode()
    return [
        pid
        for pid in _processes()
        if conf in (environ := _environ(pid)) and any(entry.startswith(b"SLURM_JOB_ID=") for entry in environ)
    ]


def stop(pids: Iterable[int], patience_s: float = 10.0) -> None:
    """Send SIGTERM, then SIGKILL. A zombie counts as ended: in a container process 1 may not reap it."""
    left = list(pids)
    for number, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not left:
            return


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
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def _processes() -> list[int]:
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() if is_alive(pid) else ""
    except OSError:
        return ""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _owns(root: Path, pid: int) -> bool:
    """Whether a process belongs to the cluster in `root`, by its environment, arguments or open files. (slurmstepd
    overwrites its arguments and environment with its title, but keeps its log open.)
    """
    if f"{TAG}={root}".encode() in _environ(pid):
        return True
    with contextlib.suppress(OSError):
        if f"{root}/".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return True
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if str(Path(entry.path).readlink()).startswith(f"{root}/"):
                    return True
    return False
