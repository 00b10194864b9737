"""An MLflow server with PostgreSQL on this machine: `python -m rlvr.tracker.server up | down | status`.

Everything lies in one directory that is nobody else's: database, artifacts, logs, password. The server listens on
loopback and asks for the password, for loopback is open to every user of the machine; the database listens on a socket
in that directory alone. Where we are root, both run as the database's user: the server too, if that one can read this
Python. Needs Debian's `postgresql` and `pip install 'rlvr[tracking]'`.
"""

from __future__ import annotations

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
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlvr.ledger import lock, terminal
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.layout import home, tracking

PORT = 5050
START_S = 120.0
PATH_LENGTH = 80  # bytes: the database's socket lies in the directory, and its path may have 107
OWNER = "postgres"  # runs the database where we are root: PostgreSQL refuses to
USER = "rlvr"  # of MLflow, who may do everything there
ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
DEBIAN = Path("/usr/lib/postgresql")
INSTALL = "As root on Debian: apt-get install postgresql"
CACHE_S = 60  # for which a password that was right once is not hashed again: a hash costs more than most requests
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


@dataclass(frozen=True)
class Server:
    """The server that lives in `root`, running or not. ValueError if that directory is, or may be, somebody else's."""

    root: Path

    def __post_init__(self) -> None:
        _check_ours(self.root)

    @property
    def store(self) -> str:
        """SQLAlchemy's address of the database."""
        return f"postgresql+psycopg://{OWNER}@/mlflow?host={quote(str(self.root / 'socket'))}"

    @property
    def state(self) -> dict[str, object]:
        return read_json(self.root / "server.json") or {}

    @property
    def uri(self) -> str:
        """What `tracker.uri` wants; "" while it does not run."""
        return str(self.state["uri"]) if lock.is_alive(self.state) else ""

    @property
    def client_env(self) -> Path:
        """What a shell sources: URI, user and password, for our eyes only."""
        return self.root / "client.env"

    @cached_property
    def owner(self) -> pwd.struct_passwd | None:
        """Who the database belongs to where that is not us."""
        return pwd.getpwnam(OWNER) if os.geteuid() == 0 else None

    def up(self, port: int = PORT) -> str:
        """Start it, if it does not run, and return its URI. ValueError says what is missing."""
        _check(self.root)
        if self.uri and _is_healthy(self.uri):
            return self.uri
        self.down()
        _check_port(port)
        self._make_private()
        self._start_database()
        identity = self._identity()
        self._mlflow(identity, "db", "upgrade", self.store)
        uri = f"http://127.0.0.1:{port}"
        password = self._write_credentials(uri)
        command = ["server", "--backend-store-uri", self.store, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--artifacts-destination", str(self.root / "artifacts"), "--workers", "2"]
        with (self.root / "mlflow.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mlflow", *command, "--app-name", "basic-auth"],
                env={**self._environment(), **self._authentication(password)},
                cwd=self.root / "artifacts",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity,
            )
        write_json(self.root / "server.json", {**lock.process_record(process.pid), "uri": uri})
        deadline = time.monotonic() + START_S
        while not _is_healthy(uri):
            if process.poll() is not None or time.monotonic() > deadline:
                self.down()
                raise ValueError(f"the MLflow server did not come up: {self.root}/mlflow.log")
            time.sleep(0.2)
        return uri

    def down(self) -> bool:
        """Stop server and database; what is stored stays. False: nothing ran."""
        found, pid = False, self.state.get("pid")
        if lock.is_alive(self.state) and isinstance(pid, int):
            found = True
            _end_group(pid)
        (self.root / "server.json").unlink(missing_ok=True)
        if (self.root / "database" / "postmaster.pid").exists():
            found = True
            self._postgres("pg_ctl", "-D", str(self.root / "database"), "-m", "fast", "-w", "stop")
        return found

    def _make_private(self) -> None:
        """Directories that nobody else may enter; as root the outer one lets the database's user through."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(self.root)  # once more: it may have come into being since
        for name in ("database", "socket", "artifacts"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
            (self.root / name).chmod(0o700)  # it may be older than this rule
        self.root.chmod(0o700)
        if self.owner is not None:
            os.chown(self.root, 0, self.owner.pw_gid)
            self.root.chmod(0o710)
            for name in ("database", "socket"):
                os.chown(self.root / name, self.owner.pw_uid, self.owner.pw_gid)

    def _identity(self) -> dict[str, Any]:
        """Who the MLflow server is, as options of Popen: as root the database's user, if it can read this Python."""
        if self.owner is None:
            return {}
        probe = [sys.executable, "-c", "import mlflow.version, psycopg, sqlalchemy, flask_wtf"]
        identity = _as(self.owner)
        try:
            done = subprocess.run(probe, capture_output=True, check=False, cwd="/", timeout=START_S, **identity)
            readable = done.returncode == 0
        except PermissionError:
            readable = False
        uid, gid = (self.owner.pw_uid, self.owner.pw_gid) if readable else (0, 0)
        for place, folders, files in os.walk(self.root / "artifacts"):
            for name in (".", *folders, *files):
                os.chown(Path(place, name), uid, gid, follow_symlinks=False)
        return identity if readable else {}

    def _environment(self) -> dict[str, str]:
        """Of the server and its tools. Nothing of MLflow's that the caller set, such as its own credentials."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "_MLFLOW_"))}
        return {**ours, **ENVIRONMENT, "HOME": str(self.root / "artifacts")}

    def _write_credentials(self, uri: str) -> str:
        """The password, for clients in `client.env`. The file decides: without it a new one replaces the old."""
        from werkzeug.security import generate_password_hash

        before = self.client_env.read_text() if self.client_env.exists() else ""
        found = re.search(r"^export MLFLOW_TRACKING_PASSWORD=(\S+)$", before, re.MULTILINE)
        password = found[1] if found else secrets.token_urlsafe(24)
        self.client_env.touch(mode=0o600)
        self.client_env.chmod(0o600)
        self.client_env.write_text(CLIENT_ENV.format(uri=uri, user=USER, password=password))
        if self._sql("select to_regclass('users')"):  # MLflow makes the user once, and never changes its password
            self._sql(
                f"update users set password_hash = '{generate_password_hash(password)}' where username = '{USER}'"
            )
        return password

    def _authentication(self, password: str) -> dict[str, str]:
        """What the server reads about it."""
        settings = self.root / "auth.ini"
        # Twice a per cent sign: the file's format would take one for a reference.
        settings.write_text(AUTH_INI.format(store=self.store.replace("%", "%%"), user=USER, cache_s=CACHE_S))
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(32),
        }

    def _start_database(self) -> None:
        data = self.root / "database"
        if self.owner is not None:
            (log := self.root / "postgres.log").touch(mode=0o600)
            os.chown(log, self.owner.pw_uid, self.owner.pw_gid)
        if not (data / "PG_VERSION").exists():
            # Whoever reaches the socket is trusted: its directory keeps all others out.
            self._postgres("initdb", "-D", str(data), "-U", OWNER, "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8")
        options = f"-h '' -k {self.root}/socket"
        log = str(self.root / "postgres.log")
        self._postgres("pg_ctl", "-D", str(data), "-l", log, "-o", options, "-w", "-t", "60", "start")
        if "mlflow" not in self._sql("select datname from pg_database", database="postgres").split():
            self._postgres("createdb", "-h", f"{self.root}/socket", "-U", OWNER, "mlflow")

    def _sql(self, statement: str, *, database: str = "mlflow") -> str:
        where = ("-h", f"{self.root}/socket", "-U", OWNER, "-d", database)
        return self._postgres("psql", *where, "-v", "ON_ERROR_STOP=1", "-tAc", statement).strip()

    def _postgres(self, name: str, *arguments: str) -> str:
        identity = _as(self.owner) if self.owner else {}
        # Not a pipe: the database inherits it, and would keep it open.
        with (self.root / "setup.log").open("w+b") as log:
            done = subprocess.run(
                [str(_postgres_bin() / name), *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=START_S,
                check=False,
                **identity,
            )
            log.seek(0)
            said = log.read().decode(errors="replace")
        if done.returncode:
            raise ValueError(f"{name} failed: {said.strip()[-500:]} (see {self.root}/postgres.log)")
        return said

    def _mlflow(self, identity: dict[str, Any], *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mlflow", *arguments],
            env=self._environment(),
            cwd=self.root / "artifacts",
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            **identity,
        )
        if done.returncode:
            raise ValueError(f"mlflow {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def _postgres_bin() -> Path:
    """Where Debian puts the newest version's programs, or where PATH has them. ValueError: nowhere."""
    versions = [p for p in DEBIAN.glob("*/bin") if (p / "initdb").exists()]
    if versions:
        return max(versions, key=lambda p: float(p.parent.name))
    if found := shutil.which("initdb"):
        return Path(found).parent
    raise ValueError(f"PostgreSQL is not installed. {INSTALL}")


def _check(root: Path) -> None:
    _postgres_bin()
    for module in ("psycopg", "flask_wtf"):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"{module} is not installed: pip install 'rlvr[tracking]', in a checkout '.[tracking]'")
    if len(str(root)) > PATH_LENGTH or " " in str(root):
        raise ValueError(f"{root}: a socket lies in it, so give --dir a path of at most {PATH_LENGTH} bytes, no space.")


def _check_ours(root: Path) -> None:
    """What lies in it is run, and processes that it names are ended: nobody else may have put something there."""
    above = root.parent.resolve()
    for place in (root, above, *above.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        ours = status.st_uid == os.geteuid() or (place != root and status.st_uid == 0)
        shared = status.st_mode & stat.S_IWOTH and (place == root or not status.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(status.st_mode) or not ours or shared:
            raise ValueError(
                f"{place} belongs to another user, or others may write there: pass --dir another directory."
            )


def _as(user: pwd.struct_passwd) -> dict[str, Any]:
    """Options of Popen: that user, without any group of ours."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise ValueError(f"port {port} is for root alone: pass --port a number from 1024 on.") from None
        except OSError:
            raise ValueError(f"port {port} is in use by something else: pass --port another one.") from None


def _is_healthy(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _end_group(leader: int) -> None:
    """SIGTERM to the server and its workers, SIGKILL to what is left of them after ten seconds."""
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not any(_group(int(each.name)) == leader for each in os.scandir("/proc") if each.name.isdigit()):
                return
            time.sleep(0.05)


def _group(pid: int) -> int:
    """Process group, 0 of a process that is gone or a zombie."""
    try:
        return os.getpgid(pid) if lock.process_start(pid) is not None else 0
    except ProcessLookupError:
        return 0


def default_root() -> Path:
    """As root where the database's own user can enter; else beside runs/."""
    return Path("/var/lib/rlvr-tracking") if os.geteuid() == 0 else tracking(home())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, 1 not running (status), 2 what stands in the way."""
    parser = terminal.Parser(prog="python -m rlvr.tracker.server", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "status"))
    parser.add_argument("--dir", type=Path, default=default_root(), help="where it lives (default %(default)s)")
    parser.add_argument(
        "--port", type=terminal.port, default=PORT, help="of the server, on loopback (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        server = Server(options.dir.absolute())
        if options.what == "down":
            print("Stopped; what is stored stays." if server.down() else "Nothing was running.")
            return 0
        uri = server.up(options.port) if options.what == "up" else server.uri
    except ValueError as error:
        print(f"tracking: {error}", file=sys.stderr)
        return 2
    print(f"tracker.uri={uri}" if uri else "Not running. Start it with: make tracking-up")
    if options.what == "up":
        print(f"For launches from this shell:  . {server.client_env}    (address, user and password; yours to read)")
        print(f"Browse: {uri} as {USER} with the password that is in it.    Stop: make tracking-down")
    return 0 if uri else 1


if __name__ == "__main__":
    sys.exit(main())
