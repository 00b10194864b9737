"""An MLflow server with PostgreSQL on this machine: `python -m rlvr.tracker.server up | down | status`.

Database, artifacts, logs and password are in one directory that no other user can enter. The server listens on loopback
and requires the password, since every user of the machine can connect to loopback; the database listens only on a
socket in that directory. If we are root, the database runs as its own user, and so does the server, if that user can
read this Python. Needs Debian's `postgresql` and `pip install 'rlvr[tracking]'`.
"""

import contextlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from rlvr.ledger import lock, terminal
from rlvr.ledger.files import read_json, write_json, write_text
from rlvr.ledger.health import fault_of_server
from rlvr.ledger.layout import home, tracking

PORT = 5050
START_S = 120.0
PATH_LENGTH = 80  # bytes: the path of the database's socket, in the directory, may have at most 107
OWNER = "postgres"  # user that runs the database if we are root: PostgreSQL does not run as root
USER = "rlvr"  # administrator of MLflow
ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
DEBIAN = Path("/usr/lib/postgresql")
CACHE_S = 60  # a password that was correct is not hashed again for this long: a hash costs more than most requests
AUTH_INI = """\
[mlflow]
default_permission = READ
database_uri = {store}
admin_username = {user}
auth_cache_ttl_seconds = {cache_s}
"""
CLIENT_ENV = """\
export MLFLOW_TRACKING_URI={uri}
export MLFLOW_TRACKING_USERNAME={user}
export MLFLOW_TRACKING_PASSWORD={password}
"""


class TrackingServer:
    """The server in the directory `root`, running or not. Raises ValueError if others own it, or may write there."""

    def __init__(self, root: Path) -> None:
        _check_ours(root)
        self.root = root
        self.database, self.artifacts = root / "database", root / "artifacts"
        self.client_env = root / "client.env"  # for a shell to source, readable by us only: URI, user and password
        self.store = f"postgresql+psycopg://{OWNER}@/mlflow?host={quote(str(root / 'socket'))}"  # for SQLAlchemy
        self.owner = pwd.getpwnam(OWNER) if os.geteuid() == 0 else None  # of the database; None: we are

    @property
    def state(self) -> dict[str, object]:
        """server.json: the record of the server's process, and its URI; {} if it was not started."""
        return read_json(self.root / "server.json") or {}

    @property
    def uri(self) -> str:
        """The value for `tracker.uri`; "" while the server does not run."""
        return str(self.state["uri"]) if lock.is_alive(self.state) else ""

    def up(self, port: int = PORT) -> str:
        """Start database and server, unless they run, and return the URI. Raises ValueError if something is missing."""
        _check_requirements(self.root)
        if self.uri and self._database_runs() and not fault_of_server(self.uri):
            return self.uri
        self.down()
        _check_port(port)
        self._make_private()
        self._start_database()
        uri, identity = f"http://127.0.0.1:{port}", self._identity()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "_MLFLOW_"))}
        environment = {**inherited, **ENVIRONMENT, "HOME": str(self.artifacts)}
        mlflow = [sys.executable, "-P", "-m", "mlflow"]
        self._run([*mlflow, "db", "upgrade", self.store], env=environment, **identity)
        command = ["server", "--backend-store-uri", self.store, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--artifacts-destination", str(self.artifacts), "--workers", "2", "--app-name", "basic-auth"]
        with (self.root / "mlflow.log").open("ab") as log:
            start = partial(subprocess.Popen, cwd=self.artifacts, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            environment |= self._authentication(uri)
            process = start([*mlflow, *command], env=environment, start_new_session=True, **identity)
        write_json(self.root / "server.json", {**lock.process_record(process.pid), "uri": uri})
        deadline = time.monotonic() + START_S
        while fault_of_server(uri):
            if process.poll() is not None or time.monotonic() > deadline:
                self.down()
                raise ValueError(f"the MLflow server did not come up: {self.root}/mlflow.log")
            time.sleep(0.2)
        return uri

    def down(self) -> bool:
        """Stop server and database, and keep the data. Returns whether one of them was running."""
        pid = self.state.get("pid") if lock.is_alive(self.state) else None
        if isinstance(pid, int):
            _end_group(pid)
        (self.root / "server.json").unlink(missing_ok=True)
        database_ran = self._database_runs()
        if database_ran:
            self._postgres("pg_ctl", "-D", str(self.database), "-m", "fast", "-w", "stop")
        return pid is not None or database_ran

    def _make_private(self) -> None:
        """Create directories that only we may enter; if we are root, the database's user may enter the outer one."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(self.root)  # once more: another user may have created it since
        private = (self.database, self.root / "socket")
        for directory in (*private, self.artifacts):
            directory.mkdir(mode=0o700, exist_ok=True)
        if self.owner is not None:
            os.chown(self.root, 0, self.owner.pw_gid)
            self.root.chmod(0o710)
            for directory in private:
                os.chown(directory, self.owner.pw_uid, self.owner.pw_gid)

    def _identity(self) -> dict[str, Any]:
        """Options of Popen: if we are root, the database's user, provided that it can read this Python; else none."""
        if self.owner is None:
            return {}
        identity, owner = _as(self.owner), (self.owner.pw_uid, self.owner.pw_gid)
        try:
            self._run([sys.executable, "-c", "import mlflow.version, psycopg, sqlalchemy, flask_wtf"], **identity)
        except (PermissionError, ValueError):
            identity, owner = {}, (0, 0)
        for path in (self.artifacts, *self.artifacts.rglob("*")):
            os.chown(path, *owner, follow_symlinks=False)
        return identity

    def _authentication(self, uri: str) -> dict[str, str]:
        """Write `client.env` and auth.ini. Returns the environment variables of the server's authentication.

        The password is the one in `client.env`, or a new one if there is no such file.
        """
        from werkzeug.security import generate_password_hash

        before = self.client_env.read_text() if self.client_env.exists() else ""
        match = re.search(r"^export MLFLOW_TRACKING_PASSWORD=(\S+)$", before, re.MULTILINE)
        password = match[1] if match else secrets.token_urlsafe(24)
        write_text(self.client_env, CLIENT_ENV.format(uri=uri, user=USER, password=password), private=True)
        if self._sql("select to_regclass('users')"):  # MLflow creates the user once, and never changes its password
            hashed = generate_password_hash(password)
            self._sql(f"update users set password_hash = '{hashed}' where username = '{USER}'")
        settings = self.root / "auth.ini"
        # Per cent signs are doubled: in this file format a single one begins a reference.
        settings.write_text(AUTH_INI.format(store=self.store.replace("%", "%%"), user=USER, cache_s=CACHE_S))
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(32),
        }

    def _database_runs(self) -> bool:
        """Whether the process in postmaster.pid is our database. A database that was killed leaves this file."""
        try:
            pid = int((self.database / "postmaster.pid").read_text().split()[0])
            return os.fsencode(self.database) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            return False

    def _remove_remnants(self) -> None:
        """Of a database that was killed: its other processes, and its lock files, which may be empty after a power cut,
        or name another process by now, or a zombie. PostgreSQL would not start beside them.
        """
        left = [process for process in psutil.process_iter() if _works_in(process, self.database)]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=START_S)
        for file in (self.database / "postmaster.pid", *(self.root / "socket").glob(".s.PGSQL.*")):
            file.unlink(missing_ok=True)

    def _start_database(self) -> None:
        data, log = str(self.database), self.root / "postgres.log"
        self._remove_remnants()
        if self.owner is not None:
            log.touch(mode=0o600)
            os.chown(log, self.owner.pw_uid, self.owner.pw_gid)
        if not (self.database / "PG_VERSION").exists():
            # No password for the socket: other users cannot enter its directory.
            self._postgres("initdb", "-D", data, "-U", OWNER, "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8")
        options = f"-h '' -k {self.root}/socket"
        self._postgres("pg_ctl", "-D", data, "-l", str(log), "-o", options, "-w", "-t", "60", "start")
        if "mlflow" not in self._sql("select datname from pg_database", database="postgres").split():
            self._postgres("createdb", "-h", f"{self.root}/socket", "-U", OWNER, "mlflow")

    def _sql(self, statement: str, *, database: str = "mlflow") -> str:
        options = ("-h", f"{self.root}/socket", "-U", OWNER, "-d", database)
        return self._postgres("psql", *options, "-v", "ON_ERROR_STOP=1", "-tAc", statement).strip()

    def _postgres(self, name: str, *arguments: str) -> str:
        return self._run([str(_postgres_bin() / name), *arguments], **(_as(self.owner) if self.owner else {}))

    def _run(self, command: Sequence[str], **options: Any) -> str:
        """The output of a program. Raises ValueError if it fails. options: of Popen."""
        # Not a pipe: the database would inherit it and keep it open.
        with (self.root / "setup.log").open("w+b") as log:
            run = partial(subprocess.run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START_S)
            result = run(command, cwd="/", check=False, **options)
            log.seek(0)
            output = log.read().decode(errors="replace")
        if result.returncode:
            program = " ".join(Path(word).name for word in command[:5])
            raise ValueError(f"{program} failed: {output.strip()[-500:]} (logs: {self.root})")
        return output


def _postgres_bin() -> Path:
    """The directory of PostgreSQL's programs: Debian's newest version, else from PATH. ValueError if there is none."""
    versions = [path for path in DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    if versions:
        return max(versions, key=lambda path: float(path.parent.name))
    if initdb := shutil.which("initdb"):
        return Path(initdb).parent
    raise ValueError("PostgreSQL is not installed. As root on Debian: apt-get install postgresql")


def _check_requirements(root: Path) -> None:
    _postgres_bin()
    for module in ("psycopg", "flask_wtf"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"{module} is not installed: pip install 'rlvr[tracking]', in a checkout '.[tracking]'")
    if len(str(root)) > PATH_LENGTH or " " in str(root):
        raise ValueError(f"{root}: a socket lies in it, so give --dir a path of at most {PATH_LENGTH} bytes, no space.")


def _check_ours(root: Path) -> None:
    """Raises ValueError if others may have put files into `root`: we run them, and kill processes by them."""
    parent = root.parent.resolve()
    for path in (root, parent, *parent.parents):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        is_ours = status.st_uid == os.geteuid() or (path != root and status.st_uid == 0)
        is_shared = status.st_mode & stat.S_IWOTH and (path == root or not status.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(status.st_mode) or not is_ours or is_shared:
            raise ValueError(
                f"{path} belongs to another user, or others may write there: pass --dir another directory."
            )


def _works_in(process: psutil.Process, directory: Path) -> bool:
    """Whether this is the working directory of a process, as that of PostgreSQL's is its database."""
    try:
        return Path(process.cwd()) == directory
    except (psutil.Error, OSError):
        return False


def _as(user: pwd.struct_passwd) -> dict[str, Any]:
    """Options of Popen to run as this user, without any of our groups."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _check_port(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except PermissionError:
        raise ValueError(f"port {port} is for root alone: pass --port a number from 1024 on.") from None
    except OSError:
        raise ValueError(f"port {port} is in use by something else: pass --port another one.") from None


def _end_group(leader: int) -> None:
    """Send SIGTERM to a process group, and SIGKILL to those of its processes that remain after ten seconds."""
    with contextlib.suppress(ProcessLookupError):  # raised once no process is left
        for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            os.killpg(leader, number)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):  # if this process has started it
                    os.waitpid(leader, os.WNOHANG)
                os.killpg(leader, 0)
                time.sleep(0.05)


def default_root() -> Path:
    """For root a directory that the database's user can enter; else one beside runs/."""
    return Path("/var/lib/rlvr-tracking") if os.geteuid() == 0 else tracking(home())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0; 1 if the server is not running (status); 2 if something prevents the action."""
    parser = terminal.Parser(prog="python -m rlvr.tracker.server", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument("--dir", type=Path, default=default_root(), help="its directory (default %(default)s)")
    parser.add_argument(
        "--port", type=terminal.port, default=PORT, help="of the server, on loopback (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        server = TrackingServer(options.dir.absolute())
        if options.action == "down":
            print("Stopped; its data are kept." if server.down() else "Nothing was running.")
            return 0
        uri = server.up(options.port) if options.action == "up" else server.uri
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        print(f"tracking: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    print(f"tracker.uri={uri}" if uri else "Not running. Start it with: make tracking-up")
    if options.action == "up":
        print(
            f"For launches from this shell:  . {server.client_env}    (address, user, password; only you can read it)"
        )
        print(f"Browse: {uri} as {USER} with the password in it.    Stop: make tracking-down")
    return 0 if uri else 1


if __name__ == "__main__":
    sys.exit(main())
