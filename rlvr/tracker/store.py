"""Which MLflow store to write to, and whether it is usable. Imports no mlflow: a dead store costs only seconds."""

import importlib.util
import os
import socket
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

from rlvr.ledger.files import mount
from rlvr.ledger.health import ANSWER_S, fault_of_server
from rlvr.ledger.layout import mlflow_database
from rlvr.ledger.tags import redact

_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_ALLOWED = ("sqlite", "http", "https", *_PORTS, "databricks")
COPIES = ("tensorboard", "wandb", "trackio")  # other trackers, by package and extra of rlvr: `wandb`, `wandb:FOLDER`
_DAMAGED = ("malformed", "not a database", "disk I/O error")  # in messages of SQLite about a damaged file
# In its messages about a file whose creation was interrupted (by an earlier version, or by `mlflow ui`).
_HALF_MADE = ("OperationalError) table", "OperationalError) index", "duplicate column name")
_NETWORK_FILESYSTEMS = {
    *("nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs"),
    *("fuse.glusterfs", "fuse.sshfs", "orangefs", "pvfs2", "panfs", "wekafs"),
}


class StoreDown(Exception):
    """Raised when the store does not answer, or another pass holds the lock: nothing can be shipped now."""


class Refused(Exception):
    """Raised when the store answers, but rejects this run."""


class NoFiles(Exception):
    """Raised when the store answers, but takes no artifacts."""


def resolve(home: Path, uri: str | None) -> str:
    """The URI to write to: `uri`, else $MLFLOW_TRACKING_URI, else sqlite in `home`. A path in it becomes absolute.

    A relative path is relative to `home`, not to the current directory. Raises ValueError for an unusable URI.
    """
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI") or _sqlite(home)
    scheme = _scheme(chosen)
    if scheme in COPIES:
        return _resolve_copy(home, scheme, chosen.partition(":")[2])
    if scheme not in _ALLOWED:
        raise ValueError(
            f"tracking URI {redact(chosen)!r} has no usable scheme. Allowed: {', '.join(_ALLOWED)}; for example "
            f"{_sqlite(home)} or http://127.0.0.1:5000."
        )
    if scheme != "sqlite":
        return chosen.rstrip("/")
    path, _, query = chosen.partition(":///")[2].partition("?")
    if not path or path == ":memory:":
        raise ValueError(f"tracking URI {chosen!r} names no file: type {_sqlite(home)}")
    return f"sqlite:///{(home / path).resolve()}{'?' + query if query else ''}"


def _resolve_copy(home: Path, tracker: str, folder: str) -> str:
    """The address of another tracker with the folder of its files: its own one for trackio, unless one is given."""
    if importlib.util.find_spec(tracker) is None:
        raise ValueError(f"tracker={tracker} needs its package: pip install 'rlvr[{tracker}]'.")
    usual = {"tensorboard": tracker, "wandb": os.environ.get("WANDB_DIR") or "."}.get(tracker, "")
    return f"{tracker}:{(home / (folder or usual)).resolve()}" if folder or usual else tracker


def is_copy(uri: str | None) -> bool:
    """Whether it names another tracker than MLflow."""
    return _scheme(uri or "") in COPIES


def _sqlite(home: Path) -> str:
    return f"sqlite:///{mlflow_database(home)}"


def _scheme(uri: str) -> str:
    """The scheme of a URI, without a driver: "postgresql" for postgresql+psycopg://..."""
    return uri.partition(":")[0].partition("+")[0].lower()


def sqlite_path(uri: str) -> Path | None:
    """The file of a resolved sqlite URI; None for any other store."""
    return Path(uri.partition(":///")[2].partition("?")[0]) if _scheme(uri) == "sqlite" else None


def is_local(uri: str) -> bool:
    """Whether this process writes to the database itself, without a server that stores the artifacts."""
    return _scheme(uri) == "sqlite" or _scheme(uri) in _PORTS


def key(home: Path, uri: str) -> str:
    """The name of a store in cursors: its URI, but for a SQLite file in the home its path there, as homes are moved."""
    path = sqlite_path(uri)
    return f"sqlite:///{path.relative_to(home)}" if path is not None and path.is_relative_to(home) else uri


def fault(uri: str) -> str | None:
    """A message why the store cannot be written to now; None if it can. Creates the directory of a sqlite file."""
    path = sqlite_path(uri)
    if path is not None:
        return _sqlite_fault(path)
    parts = urlsplit(uri)
    if _scheme(uri) in ("http", "https"):
        problem = fault_of_server(uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} {problem}" if problem else None
    port = _PORTS.get(_scheme(uri))
    if port is None or not parts.hostname:
        return None
    try:
        socket.create_connection((parts.hostname, parts.port or port), timeout=ANSWER_S).close()
    except OSError as error:
        return f"{parts.hostname}:{parts.port or port} does not answer ({error})"
    return None


def remedy(uri: str, fault: str) -> str:
    """What to do about a damaged or half made SQLite file; "" for any other store or fault."""
    path = sqlite_path(uri)
    if path is None or not any(words in fault for words in (*_DAMAGED, *_HALF_MADE)):
        return ""
    return f". Move {path} away, with {path.name}-wal if there is one: `python -m sweeps sync` restores all from runs/"


def identity_of(uri: str) -> tuple[int, int] | None:
    """Device and inode of a SQLite file, which change if another file takes its place. None if there is no file."""
    path = sqlite_path(uri)
    try:
        status = path.stat() if path else None
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def respelled(uri: str, number: int) -> str:
    """Another spelling of the same SQLite path, since MLflow never closes its connections to a URI."""
    return uri.replace(":///", f":////{'./' * number}", 1) if sqlite_path(uri) and number else uri


def _sqlite_fault(path: Path) -> str | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=ANSWER_S)
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        return f"{path} cannot be used as a database ({error})" + remedy(f"sqlite:///{path}", str(error))
    return None if os.access(path, os.W_OK) else f"{path} is read-only"


def network_filesystem(path: Path) -> str | None:
    """Type of the network filesystem of `path`, such as nfs4; None for a local disk, or if it cannot be known."""
    kind, _ = mount(path)
    return kind if kind in _NETWORK_FILESYSTEMS else None
