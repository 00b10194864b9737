"""Starts and stops the cluster: munge, database, accounting, controller and nodes, in this order; then a first job."""

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.slurm.local_cluster import packages, processes
from tests.slurm.local_cluster.packages import program
from tests.slurm.local_cluster.settings import Settings, free_base_port

ROOT = Path("/var/lib/rlvr-slurm")
LOCK = Path("/run/rlvr-slurm.lock")  # in a directory in which only root creates files, as that of ROOT
ROOT_LENGTH = 60  # characters, so that the path of the longest socket in it stays under 108 bytes
START_S = 240.0  # longest wait at each step of the start; enough on a busy machine
DATABASE_USER = "mysql"  # created by Debian's package
CLIENT_S = 20.0  # timeout of a client command


def up(root: Path = ROOT, *, nodes: int = 4) -> Settings:
    """Start the cluster. One that answers already is left unchanged; one that does not is removed, with its jobs.

    ValueError if this machine cannot run it.
    """
    root = _checked(root)
    if why := packages.obstacle():
        raise ValueError(why)
    before = Settings.read(root)
    if before is not None and is_ready(before):
        return before
    down(root)
    if before is not None:
        shutil.rmtree(root)
    with _start_lock_held():
        return _start_all(root, nodes)


@contextlib.contextmanager
def _start_lock_held() -> Iterator[None]:
    """Only one cluster starts at a time, so that two do not choose the same free ports, or call apt at once."""
    LOCK.touch(mode=0o600)  # who can read it can lock it
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_all(root: Path, nodes: int) -> Settings:
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    _check_ownership(root)  # once more: another user may have created it since the first check
    (root / "log").mkdir(exist_ok=True)
    packages.install(root / "log" / "apt.log")
    cluster = Settings(root, free_base_port(11 + nodes), nodes=nodes)
    _prepare(cluster)
    start_servers(cluster)
    for name in cluster.node_names:
        start_node(cluster, name)
    _await("every node is idle", cluster, lambda: _nodes_idle(cluster))
    client(cluster, "srun", "--gres=gpu:1", "--immediate=10", "true")
    _await("sacct knows the first job", cluster, lambda: "COMPLETED" in client(cluster, "sacct", "-nPo", "State"))
    return cluster


def down(root: Path = ROOT) -> int:
    """Stop all processes of this cluster, jobs included, also those left by a crash. Returns their number."""
    root = _checked(root)
    count = 0
    for kind in processes.DAEMONS:
        daemons = processes.daemons(root, kind)
        if kind == "slurmd":
            running = processes.jobs(root)
            processes.stop(running, patience_s=2.0)
            count += len(running)
        processes.stop(daemons)
        count += len(daemons)
    return count


def read(root: Path = ROOT) -> Settings | None:
    """The settings of the cluster in `root`; None if there is none."""
    return Settings.read(_checked(root))


def is_ready(cluster: Settings) -> bool:
    """Whether the controller answers and every node is up."""
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
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CLIENT_S, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{name} got no answer in {CLIENT_S:.0f} s; logs: {cluster.root}/log") from None
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or [f"code {process.returncode}"])[-1]
        raise ValueError(f"{name} {' '.join(arguments)}: {last_line}")
    return process.stdout


def start_servers(cluster: Settings) -> None:
    """Start munge, the database, accounting and the controller."""
    root = cluster.root
    munged = [program("munged"), "-F", f"--socket={cluster.socket}", f"--key-file={root}/munge.key"]
    munged += [f"--pid-file={root}/munge.pid", f"--log-file={root}/log/munge.log", f"--seed-file={root}/munge.seed"]
    _start(cluster, "munged", munged)
    _await("munge listens", cluster, cluster.socket.is_socket)
    database = [
        program("mariadbd"),
        "--no-defaults",
        f"--datadir={cluster.database}",
        f"--socket={cluster.database_socket}",
    ]
    database += [f"--pid-file={cluster.database}/db.pid", "--skip-networking", f"--user={DATABASE_USER}"]
    database += [f"--init-file={root}/database.sql", "--innodb-buffer-pool-size=32M", "--performance-schema=OFF"]
    _start(cluster, "mariadbd", database)
    _await("the database listens", cluster, cluster.database_socket.is_socket)
    start_accounting(cluster)
    clusters = ("sacctmgr", "-nP", "show", "cluster", "format=cluster")
    _await("accounting answers", cluster, lambda: client(cluster, *clusters) is not None)
    if "rlvr" not in client(cluster, *clusters).split():
        client(cluster, "sacctmgr", "-i", "add", "cluster", "rlvr")
    start_controller(cluster)
    _await("the controller answers", cluster, lambda: "UP" in client(cluster, "scontrol", "ping"))


def start_accounting(cluster: Settings) -> None:
    _start(cluster, "slurmdbd", [program("slurmdbd"), "-D"])


def start_controller(cluster: Settings) -> None:
    _start(cluster, "slurmctld", [program("slurmctld"), "-D", "-i", "-f", str(cluster.conf)])


def start_node(cluster: Settings, name: str) -> None:
    (cluster.root / "spool" / name).mkdir(parents=True, exist_ok=True)
    _start(cluster, name, [program("slurmd"), "-D", "-N", name, "-f", str(cluster.conf)])


def _prepare(cluster: Settings) -> None:
    """Create directories, secrets, device files and an empty database."""
    root = cluster.root
    for name, mode in (("state", 0o700), ("spool", 0o755), ("log", 0o700), ("dev", 0o755)):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    key = root / "munge.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
    for name in cluster.node_names:
        for index in range(cluster.gpus):
            device = root / "dev" / f"{name}-gpu{index}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # the device of /dev/null
    owner = pwd.getpwnam(DATABASE_USER)
    cluster.write()
    os.chown(root / "database.sql", owner.pw_uid, owner.pw_gid)
    if not cluster.database.exists():
        _make_database(cluster, owner)


def _make_database(cluster: Settings, owner: pwd.struct_passwd) -> None:
    """Create an empty database that belongs to its user. Only root of this machine is an administrator of it."""
    cluster.database.mkdir(mode=0o700)
    os.chown(cluster.database, owner.pw_uid, owner.pw_gid)
    command = [program("mariadb-install-db"), "--no-defaults", f"--datadir={cluster.database}"]
    command += [f"--user={DATABASE_USER}", "--auth-root-authentication-method=socket", "--skip-test-db"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S)
    if process.returncode:
        shutil.rmtree(cluster.database, ignore_errors=True)
        raise ValueError(f"mariadb-install-db failed: {(process.stdout + process.stderr).strip()[-500:]}")


def _start(cluster: Settings, name: str, command: list[str]) -> None:
    processes.start(command, cluster.root, cluster.root / "log" / f"{name}.out", cluster.database_socket)


def _await(event: str, cluster: Settings, has_happened: Callable[[], bool]) -> None:
    """Poll until `has_happened` returns True. A client command that fails counts as False."""
    deadline, last_error = time.monotonic() + START_S, ""
    while time.monotonic() < deadline:
        try:
            if has_happened():
                return
        except ValueError as error:
            last_error = str(error)
        time.sleep(0.1)
    raise ValueError(f"waited {START_S:.0f} s in vain until {event}. {last_error} Logs: {cluster.root}/log")


def _nodes_idle(cluster: Settings) -> bool:
    lines = set(client(cluster, "sinfo", "-hN", "-o", "%N %T").split("\n")) - {""}
    return lines == {f"{name} idle" for name in cluster.node_names}


def _checked(root: Path) -> Path:
    root = root.absolute()
    if len(str(root)) > ROOT_LENGTH or " " in str(root):
        raise ValueError(f"{root}: sockets lie in it, so give --dir a path of at most {ROOT_LENGTH} bytes, no spaces.")
    _check_ownership(root)
    return root


def _check_ownership(root: Path) -> None:
    """ValueError if another user may have written into the directory: root executes files in it, and kills the
    processes and removes the files that it names.
    """
    parent = root.parent.resolve()
    for directory in (root, parent, *parent.parents):
        try:
            status = directory.lstat()
        except FileNotFoundError:
            continue
        is_ours = status.st_uid == os.geteuid() or (directory != root and status.st_uid == 0)
        is_shared = status.st_mode & stat.S_IWOTH and (directory == root or not status.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(status.st_mode) or not is_ours or is_shared:
            raise ValueError(
                f"{directory} belongs to another user, or others may write there: give --dir another directory."
            )
