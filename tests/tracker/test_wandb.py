"""Journals as offline runs of W&B, read back from its transaction log."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracker.test_copies import FIRST, SECOND, journal, make_home

pytest.importorskip("wandb")

BLOCK, HEAD = (
    32768,
    7,
)  # bytes of LevelDB's log format, in which W&B keeps its records; the file begins with 7 of its own


def records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, body = path.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEAD])
        body += data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (1, 4):  # whole, or the last part of one
            record = Record()
            record.ParseFromString(body)
            body = b""
            yield record


def ship(home: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a new process: W&B reads its environment only once."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    command = [sys.executable, "-m", "rlvr.tracker.wandb", "--home", str(home), "--out", str(out), "--sweep", "pilot"]
    env = {**kept, "HOME": str(home), "NETRC": str(home / "netrc"), **environment}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def test_every_step_is_there_once_with_its_own_time_however_often_it_is_shipped(tmp_path: Path) -> None:
    home, out = make_home(tmp_path), tmp_path / "wb"
    done = ship(home, out, WANDB_MODE="offline")
    assert done.stdout == f"1 runs: wandb sync {out}/wandb/offline-run-*\n", done.stderr
    journal(home, *FIRST, *SECOND)
    for _ in range(2):
        ship(home, out, WANDB_MODE="offline").check_returncode()
    (folder,) = (tmp_path / "wb" / "wandb").glob("offline-run-*")
    everything = list(records(folder / "run-abc123def456.wandb"))
    items = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in r.history.item} for r in everything]
    shown = [(i["_step"], i["_timestamp"], i["a/b"]) for i in items if "a/b" in i]
    assert shown == [(1, 10.0, 0.5), (2, 11.0, 0.25), (3, 12.5, 0.125)]
    run = next(r.run for r in everything if r.WhichOneof("record_type") == "run")
    about = (run.run_id, run.project, run.display_name, run.run_group, list(run.tags))
    assert about == ("abc123def456", "eta", "grpo-s0", "grpo", ["pilot", "cpu", "x"])
    config = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert (config["lr"], config["loss"]) == (0.001, "grpo")
    assert not any(b"secret" in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_the_error_without_a_key_is_one_line(tmp_path: Path) -> None:
    done = ship(make_home(tmp_path), tmp_path / "wb")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: W&B: No API key configured")
