"""Disks that are small, of memory."""

from __future__ import annotations

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
