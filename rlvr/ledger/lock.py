"""Which process holds a run: file locks, and telling a live process from one that had its number before. No torch."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what a file system without locks answers


def machine() -> dict[str, str]:
    """What must agree before a process number means the same process: this boot, this process namespace."""
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "namespace": str(Path("/proc/self/ns/pid").readlink()),
        }
    except OSError:  # not Linux: locks alone tell who is alive
        return {"boot": "", "namespace": ""}


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, to tell reused numbers apart; None if none, or a zombie, has it."""
    try:
        # The name in parentheses may hold spaces and parentheses itself: fields count from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def known_as(pid: int) -> dict[str, Any]:
    """A process of this machine, as `is_alive` knows it again."""
    return {"pid": pid, "process_start": process_start(pid), **machine()}


def is_alive(job: Mapping[str, Any]) -> bool | None:
    """Does a process that was written down (`known_as`) still run? None: it was started elsewhere, it cannot be told
    from here.
    """
    here = machine()
    if not here["boot"] or any(job.get(key) != value for key, value in here.items()):
        return None
    return job.get("process_start") is not None and process_start(int(job["pid"])) == job["process_start"]


def lock_is_held(path: Path) -> bool | None:
    """Does any process hold this lock? None where the file system cannot say. Takes the lock for an instant."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
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
# would keep the run locked. So children drop their copy. (Those that exec lose it anyway.)
_held: set[int] = set()


def _drop_inherited_locks() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_drop_inherited_locks)


def lock(path: Path, patience_s: float = 0.5) -> int | None:
    """File descriptor that holds the lock; None if another process does. The patience outlasts `lock_is_held`.

    ValueError where the file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
                raise ValueError(_without_locks(path, error)) from None
            raise
        else:
            _held.add(fd)
            return fd


def _without_locks(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be locked: {error.strerror}. Without locks two processes could work on one run. Set RLVR_HOME "
        "to a directory on a file system that has them: a local disk, Lustre mounted with `flock`, NFS whose lock "
        "service is up (docs/slurm.md)."
    )


def unlock(fd: int) -> None:
    """Give a lock back."""
    if fd in _held:  # not so in a forked child, which dropped its copy
        _held.discard(fd)
        os.close(fd)


def sign(held: int) -> None:
    """Write into a lock which process holds it: this one."""
    os.ftruncate(held, 0)
    os.pwrite(held, json.dumps(known_as(os.getpid())).encode(), 0)


def holder(path: Path) -> int | None:
    """Number of the process on this machine that holds a signed lock; None: no such, or it cannot be told."""
    try:
        signed = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return signed["pid"] if lock_is_held(path) and is_alive(signed) else None
