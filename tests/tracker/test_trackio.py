"""Journals in trackio's local store, read back by trackio."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tracker.test_copies import FIRST, SECOND, journal, make_home

pytest.importorskip("trackio")

READ = """
from trackio.sqlite_storage import SQLiteStorage as S
for log in S.get_logs("eta", "grpo-s0", run_id="abc123def456"): print(log["step"], log["timestamp"], log["a/b"])
print(S.get_runs("eta"))
"""


def python(*arguments: str, **environment: str) -> str:
    """The output of a new process: trackio reads the place of its store once, on import."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_every_step_arrives_once_with_its_own_time_however_often_it_is_shipped(tmp_path: Path) -> None:
    home, out = make_home(tmp_path), str(tmp_path / "store")
    ship = ["-m", "rlvr.tracker.trackio", "--home", str(home), "--out", out, "--sweep", "pilot"]
    assert python(*ship) == f"1 runs: TRACKIO_DIR={out} trackio show\n"
    journal(home, *FIRST, *SECOND)
    python(*ship)
    python(*ship)
    assert python("-c", READ, TRACKIO_DIR=out).splitlines() == [
        "1 1970-01-01T00:00:10+00:00 0.5",
        "2 1970-01-01T00:00:11+00:00 0.25",
        "3 1970-01-01T00:00:12.500000+00:00 0.125",
        "['grpo-s0']",
    ]
