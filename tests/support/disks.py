"""Disks that are small, and files that may not be read."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mount(*options: str) -> bool:
    return subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A disk at this path, which root alone can mount: without root the test is skipped."""
    path.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)):
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Permissions of files hold in this thread, and in those that it starts, for root too (capabilities(7))."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    dac_override, dac_read_search = 1 << 1, 1 << 2
    held = (ctypes.c_uint32 * 6)(before[0] & ~(dac_override | dac_read_search), *before[1:])
    assert libc.capset(header, held) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
