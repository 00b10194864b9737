"""A disk that fills up while a run is at work: nothing that was saved is lost, nothing is measured twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_sweep import deterministic, python, runs
from tests.support import words
from tests.support.disks import mount, small_disk

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(900)]

BANDIT = [
    *(*words.BANDIT, "loss=lad", "divergence=js", "rollout.samples=64", "steps=400", "evaluation.every=400"),
    *("checkpoint.every=20", "cluster=local", "tracker=none"),
]
TOO_SMALL, ENOUGH = "400k", "8m"  # the run writes about 600 kB


def launch(home: Path) -> tuple[int, str]:
    process = python("-m", "rlvr.run", *BANDIT, home=home)
    out, _ = process.communicate(timeout=200)
    return process.returncode, out


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", TOO_SMALL) as path:
        yield path


def test_a_run_stopped_by_a_full_disk_goes_on_bit_for_bit_when_there_is_room(disk: Path, tmp_path: Path) -> None:
    code, out = launch(disk)
    assert code != 0
    assert "no space left" in out.lower()
    assert "Traceback" not in out
    (run_dir,) = runs(disk).values()
    assert (run_dir / "metrics.jsonl").read_bytes().count(b"\n") < 401
    assert mount("-o", f"remount,size={ENOUGH}", str(disk))
    assert launch(disk)[0] == 0
    last = max((run_dir / "attempts").iterdir(), key=lambda path: int(path.name))
    assert (json.loads((last / "exit.json").read_text())["cause"], launch(tmp_path)[0]) == ("ok", 0)
    (undisturbed,) = runs(tmp_path).values()
    resumed = deterministic(run_dir)
    assert (sorted(resumed), resumed) == (list(range(401)), deterministic(undisturbed))


def test_a_directory_that_cannot_be_written_is_named_with_what_to_set(disk: Path) -> None:
    assert mount("-o", "remount,ro", str(disk))
    code, out = launch(disk)
    assert (code, len(out.strip().splitlines())) == (2, 1)
    assert f"{disk}/runs cannot be written: Read-only file system. Runs go to {disk}: set RLVR_HOME to" in out
