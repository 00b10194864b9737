"""An MLflow server with PostgreSQL on this machine: `python -m rlvr.tracker.server up | down | status`.

Everything lies in one directory: database, artifacts, logs. The server listens on loopback; the database on a socket
in that directory alone, which nobody else may enter. Needs Debian's `postgresql` and `pip install 'rlvr[tracking]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rlvr.ledger import lock
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.layout import home, tracking

PORT = 5050
START_S = 120.0
PATH_LENGTH = 80  # bytes: the database's socket lies in the directory, and its path may have 107
OWNER = "postgres"  # runs the database where we are root: PostgreSQL refuses to
ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
DEBIAN = Path("/usr/lib/postgresql")
INSTALL = "As root on Debian: apt-get install postgresql"


@dataclass(frozen=True)
class Server:
    """The server that lives in `root`, running or not."""

    root: Path

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

    def up(self, port: int = PORT) -> str:
        """Start it, if it does not run, and return its URI. ValueError says what is missing."""
        _check(self.root)
        if self.uri and _is_healthy(self.uri):
            return self.uri
        self.down()
        _check_port(port)
        for name in ("database", "socket", "artifacts"):
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._start_database()
        self._mlflow("db", "upgrade", self.store)
        uri = f"http://127.0.0.1:{port}"
        command = ["server", "--backend-store-uri", self.store, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--artifacts-destination", str(self.root / "artifacts"), "--workers", "2"]
        with (self.root / "mlflow.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mlflow", *command],
                env={**os.environ, **ENVIRONMENT},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        who = {"pid": process.pid, "process_start": lock.process_start(process.pid), **lock.machine()}
        write_json(self.root / "server.json", {**who, "uri": uri})
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

    def _start_database(self) -> None:
        data = self.root / "database"
        if os.geteuid() == 0:
            for name in ("database", "socket"):
                shutil.chown(self.root / name, OWNER, OWNER)
            (log := self.root / "postgres.log").touch()
            shutil.chown(log, OWNER, OWNER)
        if not (data / "PG_VERSION").exists():
            # Whoever reaches the socket is trusted: its directory keeps all others out.
            self._postgres("initdb", "-D", str(data), "-U", OWNER, "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8")
        options = f"-h '' -k {self.root}/socket"
        log = str(self.root / "postgres.log")
        self._postgres("pg_ctl", "-D", str(data), "-l", log, "-o", options, "-w", "-t", "60", "start")
        connect = ("-h", f"{self.root}/socket", "-U", OWNER)
        if "mlflow" not in self._postgres("psql", *connect, "-tAc", "select datname from pg_database").split():
            self._postgres("createdb", *connect, "mlflow")

    def _postgres(self, name: str, *arguments: str) -> str:
        user = OWNER if os.geteuid() == 0 else None
        group = pwd.getpwnam(OWNER).pw_gid if user else None
        # Not a pipe: the database inherits it, and would keep it open.
        with (self.root / "setup.log").open("w+b") as log:
            done = subprocess.run(
                [str(_postgres_bin() / name), *arguments],
                user=user,
                group=group,
                extra_groups=[] if user else None,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=START_S,
                check=False,
            )
            log.seek(0)
            said = log.read().decode(errors="replace")
        if done.returncode:
            raise ValueError(f"{name} failed: {said.strip()[-500:]} (see {self.root}/postgres.log)")
        return said

    def _mlflow(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mlflow", *arguments],
            env={**os.environ, **ENVIRONMENT},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
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
    if importlib.util.find_spec("psycopg") is None:
        raise ValueError("psycopg is not installed: pip install 'rlvr[tracking]', in a checkout '.[tracking]'")
    if len(str(root)) > PATH_LENGTH or " " in str(root):
        raise ValueError(f"{root}: a socket lies in it, so give --dir a path of at most {PATH_LENGTH} bytes, no space.")


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
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
    parser = argparse.ArgumentParser(
        prog="python -m rlvr.tracker.server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("up", "down", "status"))
    parser.add_argument("--dir", type=Path, default=default_root(), help="where it lives (default %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="of the server, on loopback (default %(default)s)")
    options = parser.parse_args(arguments)
    server = Server(options.dir.absolute())
    try:
        if options.what == "down":
            print("Stopped; what is stored stays." if server.down() else "Nothing was running.")
            return 0
        uri = server.up(options.port) if options.what == "up" else server.uri
    except ValueError as error:
        print(f"tracking: {error}", file=sys.stderr)
        return 2
    print(f"tracker.uri={uri}" if uri else "Not running. Start it with: make tracking-up")
    if options.what == "up":
        print(f"For all launches: export MLFLOW_TRACKING_URI={uri}    Browse: {uri}    Stop: make tracking-down")
    return 0 if uri else 1


if __name__ == "__main__":
    sys.exit(main())
