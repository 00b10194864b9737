"""Start and stop: munge, database, accounting, controller, nodes, in this order; ready only when a job has run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm.local_cluster import packages, processes
from slurm.local_cluster.packages import program
from slurm.local_cluster.settings import Settings, free_base_port

ROOT = Path("/tmp/rlvr-slurm")
ROOT_LENGTH = 60  # characters: the longest socket below it must stay under 108 bytes
START_S = 240.0  # on a busy machine
CLIENT_S = 20.0  # no call of a client may hang


def up(root: Path = ROOT, *, nodes: int = 4, grace_s: int = 20, fresh: bool = True) -> Settings:
    """Start the cluster; one that answers already is left as it is. ValueError says what stands in the way.

    fresh: forget the jobs of a former one. fresh=False goes on where it was stopped, jobs in the queue and all.
    """
    root = _checked(root)
    if why := packages.obstacle():
        raise ValueError(why)
    before = Settings.read(root)
    if before is not None and is_ready(before):
        return before
    down(root)
    if fresh and before is not None:
        shutil.rmtree(root)
    with _alone():
        return _start_all(root, None if fresh else before, nodes=nodes, grace_s=grace_s)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two clusters that start at the same time must not find the same ports free, or both ask apt."""
    with Path("/tmp/rlvr-slurm.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_all(root: Path, kept: Settings | None, *, nodes: int, grace_s: int) -> Settings:
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    (root / "log").mkdir(exist_ok=True)
    packages.install(root / "log" / "apt.log")
    cluster = kept or Settings(root, free_base_port(11 + nodes), nodes=nodes, grace_s=grace_s)
    _prepare(cluster)
    start_servers(cluster)
    for name in cluster.node_names:
        start_node(cluster, name)
    _await("every node is idle", cluster, lambda: _nodes_idle(cluster))
    client(cluster, "srun", "--gres=gpu:1", "--immediate=10", "true")
    _await("sacct knows the first job", cluster, lambda: "COMPLETED" in client(cluster, "sacct", "-nPo", "State"))
    return cluster


def down(root: Path = ROOT) -> int:
    """Stop everything of this cluster, jobs included, also what a crash left. Returns how many processes ended."""
    root = _checked(root)
    count = 0
    for kind in processes.DAEMONS:
        found = processes.daemons(root, kind)
        if kind == "slurmd":
            running = processes.jobs(root)
            processes.stop(running, patience_s=2.0)
            count += len(running)
        processes.stop(found)
        count += len(found)
    return count


def is_ready(cluster: Settings) -> bool:
    """Does the controller answer, and is every node up?"""
    if not processes.daemons(cluster.root, "slurmctld"):
        return False
    try:
        states = client(cluster, "sinfo", "-hN", "-o", "%T").split()
    except ValueError:
        return False
    return len(states) >= cluster.nodes and not any(s.startswith(("down", "unk", "drain")) for s in states)


def client(cluster: Settings, name: str, *arguments: str) -> str:
    """Output of a SLURM command on this cluster. ValueError with its last line if it fails."""
    command = [program(name), *arguments]
    environment = {**os.environ, "SLURM_CONF": str(cluster.conf)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CLIENT_S, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{name} got no answer in {CLIENT_S:.0f} s; logs: {cluster.root}/log") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise ValueError(f"{name} {' '.join(arguments)}: {last}")
    return done.stdout


def start_servers(cluster: Settings) -> None:
    """Munge, the database, accounting and the controller."""
    root = cluster.root
    munged = [program("munged"), "-F", f"--socket={cluster.socket}", f"--key-file={root}/munge.key"]
    munged += [f"--pid-file={root}/munge.pid", f"--log-file={root}/log/munge.log", f"--seed-file={root}/munge.seed"]
    _start(cluster, "munged", munged)
    _await("munge listens", cluster, lambda: _is_socket(cluster.socket))
    database = [program("mariadbd"), "--no-defaults", f"--datadir={root}/database", f"--socket={root}/db.sock"]
    database += [f"--pid-file={root}/db.pid", "--bind-address=127.0.0.1", f"--port={cluster.database_port}"]
    database += ["--user=root", "--skip-name-resolve", f"--init-file={root}/database.sql"]
    database += ["--innodb-buffer-pool-size=32M", "--performance-schema=OFF"]
    _start(cluster, "mariadbd", database)
    _await("the database listens", cluster, lambda: _is_socket(root / "db.sock"))
    _start(cluster, "slurmdbd", [program("slurmdbd"), "-D"])
    clusters = ("sacctmgr", "-nP", "show", "cluster", "format=cluster")
    _await("accounting answers", cluster, lambda: client(cluster, *clusters) is not None)
    if "rlvr" not in client(cluster, *clusters).split():
        client(cluster, "sacctmgr", "-i", "add", "cluster", "rlvr")
    start_controller(cluster)
    _await("the controller answers", cluster, lambda: "UP" in client(cluster, "scontrol", "ping"))


def start_controller(cluster: Settings) -> None:
    _start(cluster, "slurmctld", [program("slurmctld"), "-D", "-i", "-f", str(cluster.conf)])


def start_node(cluster: Settings, name: str) -> None:
    (cluster.root / "spool" / name).mkdir(parents=True, exist_ok=True)
    _start(cluster, name, [program("slurmd"), "-D", "-N", name, "-f", str(cluster.conf)])


def _prepare(cluster: Settings) -> None:
    """Directories, secrets, device files, an empty database."""
    root = cluster.root
    for name in ("state", "spool", "log", "dev"):
        (root / name).mkdir(mode=0o755, exist_ok=True)
    key = root / "munge.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
    for name in cluster.node_names:
        for index in range(cluster.gpus):
            device = root / "dev" / f"{name}-gpu{index}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # /dev/null in other clothes
    cluster.write()
    if not (root / "database").exists():
        make = [program("mariadb-install-db"), "--no-defaults", f"--datadir={root}/database", "--user=root"]
        done = subprocess.run(
            [*make, "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        if done.returncode:
            shutil.rmtree(root / "database", ignore_errors=True)
            raise ValueError(f"mariadb-install-db failed: {(done.stdout + done.stderr).strip()[-500:]}")


def _start(cluster: Settings, name: str, command: list[str]) -> None:
    processes.start(command, cluster.root, cluster.root / "log" / f"{name}.out")


def _await(what: str, cluster: Settings, is_so: Callable[[], bool]) -> None:
    """Ask again until it is so. A client that fails means not yet."""
    deadline, last = time.monotonic() + START_S, ""
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except ValueError as error:
            last = str(error)
        time.sleep(0.1)
    raise ValueError(f"waited {START_S:.0f} s in vain until {what}. {last} Logs: {cluster.root}/log")


def _nodes_idle(cluster: Settings) -> bool:
    lines = set(client(cluster, "sinfo", "-hN", "-o", "%N %T").split("\n")) - {""}
    return lines == {f"{name} idle" for name in cluster.node_names}


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _checked(root: Path) -> Path:
    root = root.absolute()
    if len(str(root)) > ROOT_LENGTH or " " in str(root):
        raise ValueError(f"{root}: sockets lie in it, so give --dir a path of at most {ROOT_LENGTH} bytes, no spaces.")
    return root
