"""File locks, and records of processes that distinguish a live process from an earlier one with its id. No torch."""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

from rlvr.ledger.files import private_mode

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of a file system without locks


def machine() -> dict[str, str]:
    """This boot and this process namespace: a process id names the same process only if both agree."""
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "namespace": str(Path("/proc/self/ns/pid").readlink()),
        }
    except OSError:  # not Linux: only locks show which processes are alive
        return {"boot": "", "namespace": ""}


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which differs for a reused id; None if it is gone or a zombie."""
    try:
        # The name in parentheses may itself contain spaces and parentheses: fields are counted from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def process_record(pid: int) -> dict[str, Any]:
    """A record of a process on this machine, by which `is_alive` recognises it."""
    return {"pid": pid, "process_start": process_start(pid), **machine()}


def is_alive(job: Mapping[str, Any]) -> bool | None:
    """Whether the process of a record (`process_record`) still runs. None if it was started on another machine, in
    another boot or in another process namespace, or if the record is damaged: this cannot be known from here.
    """
    this_machine = machine()
    if not this_machine["boot"] or any(job.get(key) != value for key, value in this_machine.items()):
        return None
    if "process_start" not in job or not isinstance(job.get("pid"), int):
        return None
    return job["process_start"] is not None and process_start(job["pid"]) == job["process_start"]


def lock_is_held(path: Path) -> bool | None:
    """Whether any process holds this lock; None if this cannot be tested, as of another user's. Takes a shared lock for
    an instant.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


# A flock belongs to the open file, which forked children share: a verifier's worker that outlives a killed trainer
# would keep the run locked. So children close their copy. (Children that exec lose it anyway.)
_held: set[int] = set()


def _drop_inherited_locks() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_drop_inherited_locks)


PATIENCE_S = 0.5  # longer than `lock_is_held` keeps a lock


def lock(path: Path, patience_s: float = PATIENCE_S) -> int | None:
    """File descriptor that holds the lock; None if another process holds it for longer than `patience_s`.

    Only its owner may open the file: who can read it can lock it, and another user could keep a run from going on.

    Raises ValueError if the file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_mode())
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
        except OSError as error:
            os.close(fd)
            if error.errno in NO_LOCKS:
                raise ValueError(_no_locks_message(path, error)) from None
            raise
        else:
            _held.add(fd)
            return fd


def _no_locks_message(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be locked: {error.strerror}. Without locks two processes could work on one run. Set RLVR_HOME "
        "to a directory on a file system that has them: a local disk, Lustre mounted with `flock`, NFS whose lock "
        "service is up (docs/slurm.md)."
    )


def unlock(fd: int) -> None:
    """Release a lock."""
    if fd in _held:  # a forked child has closed its copy already
        _held.discard(fd)
        os.close(fd)


@contextlib.contextmanager
def held_lock(path: Path, patience_s: float, busy: Exception) -> Generator[int, None, None]:
    """Hold a lock, whose directory need not exist yet, and yield its file descriptor. Raises `busy` if another process
    holds it for longer than `patience_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = lock(path, patience_s)
    if held is None:
        raise busy
    try:
        yield held
    finally:
        unlock(held)


def write_holder(held: int, **work: Any) -> None:
    """Write the record of this process, and what it is at work on, into a lock that it holds."""
    os.ftruncate(held, 0)
    os.pwrite(held, json.dumps({**process_record(os.getpid()), **work}).encode(), 0)


def erase_holder(held: int) -> None:
    """Erase the record of `write_holder`: the process that still holds the lock is no longer to be signalled."""
    os.ftruncate(held, 0)


def holder(path: Path) -> int | None:
    """Id of the process on this machine that holds a signed lock; None if there is none, or it cannot be known."""
    record = holder_record(path)
    return record["pid"] if is_alive(record) else None


def holder_record(path: Path) -> dict[str, Any]:
    """What the process that holds a lock has written into it (`write_holder`), also from another machine; {} if nobody
    holds it, or its holder has written nothing.
    """
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict) or not lock_is_held(path):
        return {}
    record = cast("dict[str, Any]", record)
    return {} if is_alive(record) is False else record  # False: of an earlier holder, which was killed
