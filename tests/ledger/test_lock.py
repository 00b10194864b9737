import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.ledger import lock


def test_a_reused_process_number_is_not_the_same_process() -> None:
    me = {"pid": os.getpid(), "process_start": lock.process_start(os.getpid()), **lock.machine()}
    assert lock.is_alive(me) is True
    assert lock.is_alive({**me, "process_start": 1}) is False
    assert lock.is_alive({**me, "boot": "another"}) is None
    record = lock.process_record(os.getpid())
    for key in ("pid", "process_start", "boot", "namespace"):
        assert lock.is_alive({k: v for k, v in record.items() if k != key}) is None, key


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 10
    while lock.process_start(process.pid) is not None:  # wait until it is a zombie
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()


def test_the_error_of_a_file_system_without_locks_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    for answer in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO):

        def flock(*_: int, answer: int = answer) -> None:
            raise OSError(answer, os.strerror(answer))

        remedy = rf"{re.escape(str(path))} cannot be locked: {os.strerror(answer)}. .* Set RLVR_HOME to a directory"
        monkeypatch.setattr(fcntl, "flock", flock)
        if answer == errno.EIO:  # locks exist, but the disk fails
            with pytest.raises(OSError, match="Input/output error"):
                lock.lock(path)
        else:
            with pytest.raises(ValueError, match=remedy):
                lock.lock(path)
        assert path not in [fd.resolve() for fd in Path("/proc/self/fd").iterdir()]


def test_other_users_cannot_take_a_lock_nor_see_whether_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "lock"
    held = lock.lock(path)
    assert held is not None
    assert path.stat().st_mode & 0o777 == 0o600
    lock.unlock(held)
    monkeypatch.setattr(os, "open", refuse)
    assert lock.lock_is_held(path) is None


def test_a_record_counts_only_while_its_writer_holds_the_lock(tmp_path: Path) -> None:
    """A launch that was killed leaves its record behind, and the next one may hold the lock before it has signed."""
    path = tmp_path / "lock"
    held = lock.lock(path)
    assert held is not None
    lock.write_holder(held, sweep="s")
    assert (lock.holder_record(path)["sweep"], lock.holder(path)) == ("s", os.getpid())
    killed = {**lock.process_record(os.getpid()), "process_start": 1, "sweep": "s"}
    os.ftruncate(held, 0)
    os.pwrite(held, json.dumps(killed).encode(), 0)
    assert lock.holder_record(path) == {}
    elsewhere = {**killed, "boot": "another"}
    os.ftruncate(held, 0)
    os.pwrite(held, json.dumps(elsewhere).encode(), 0)
    assert (lock.holder_record(path), lock.holder(path)) == (elsewhere, None)
    lock.unlock(held)
    assert lock.holder_record(path) == {}
