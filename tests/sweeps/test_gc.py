"""`sweeps gc` removes what nobody reads, and `sweeps retry` what is said to have failed is started again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.ledger import files, layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.digests import set_aside
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.stages import record_stages
from rlvr.ledger.sweeps import Ledger
from sweeps.__main__ import main
from sweeps.gc import STALE_S, find

KB = 1024


def make_run(ledger: Ledger, run_id: str, cause: str | None, *steps: int) -> Path:
    run_dir = ledger.create_run(run_id, "{}", {"name": f"name-{run_id}"})
    for step in steps:
        (checkpoint := run_dir / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        (checkpoint / "weights").write_bytes(b"x" * KB)
    if cause:
        with Attempt.open(run_dir) as attempt:
            attempt.close(cause)
    return run_dir


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def aside(path: Path, *, old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * KB)
    then = time.time() - (2 * STALE_S if old else 0)
    os.utime(path, (then, then))
    return path


def names(ledger: Ledger) -> set[str]:
    return {str(left.path.relative_to(ledger.root)) for left in find(ledger)}


def test_a_finished_run_keeps_its_newest_checkpoint_and_others_keep_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    done, half = make_run(ledger, "done", "ok", 40, 80, 120), make_run(ledger, "half", "preempted", 40, 80)
    assert main(["gc", "--home", str(tmp_path)]) == 0
    assert "can be removed: python -m sweeps gc --yes" in capsys.readouterr().out
    assert len(list((done / "checkpoints").iterdir())) == 3
    assert [left.size for left in find(ledger)] == [KB, KB]
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert [p.name for p in (done / "checkpoints").iterdir()] == ["step-00000120"]
    assert len(list((half / "checkpoints").iterdir())) == 2
    assert not find(ledger)
    assert ledger.state("done").state == "finished"


def test_a_damaged_checkpoint_can_go(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", "preempted", 40, 80)
    set_aside(run_dir / "checkpoints" / "step-00000080")
    assert names(ledger) == {"run/checkpoints/damaged-step-00000080"}


def test_a_finished_run_keeps_its_best_checkpoint_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", "ok", 40, 80, 120, 160)
    for step, score in ((40, 0.5), (80, 0.7), (120, None)):
        state = {"extra": {"step": step, "score": score}}
        (run_dir / "checkpoints" / f"step-{step:08d}" / "trainer.json").write_text(json.dumps(state))
    assert names(ledger) == {"run/checkpoints/step-00000040", "run/checkpoints/step-00000120"}


def test_a_checkpoint_that_an_evaluation_waits_for_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", "ok", 40, 80, 120)
    policy = {"policy": {"path": str(run_dir / "checkpoints" / "step-00000040")}}
    evaluation = ledger.create_run("evaluation", json.dumps(policy), {"name": "evaluation"})
    assert names(ledger) == {"run/checkpoints/step-00000080"}
    config = layout.config(evaluation)
    config.rename(aside := config.with_suffix(".lost"))  # what it reads is not known
    assert names(ledger) == set()
    aside.rename(config)
    with Attempt.open(evaluation) as attempt:
        attempt.close("ok")
    assert names(ledger) == {"run/checkpoints/step-00000040", "run/checkpoints/step-00000080"}


def test_a_checkpoint_that_an_evaluation_names_by_another_path_stays(tmp_path: Path) -> None:
    """The home is reached through a link, as /home/me/project often is on a cluster."""
    home = tmp_path / "disk"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    run_dir = make_run(Ledger(home), "run", "ok", 40, 80)
    named = tmp_path / "link" / run_dir.relative_to(home) / "checkpoints" / "step-00000040"
    Ledger(home).create_run("evaluation", json.dumps({"policy": {"path": str(named)}}), {"name": "evaluation"})
    for ledger in (Ledger(home), Ledger(tmp_path / "link")):
        assert names(ledger) == set()


def test_what_was_half_written_goes_unless_the_run_is_held(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", None, 40)
    half = files.temporary_path(layout.checkpoint(layout.checkpoints(run_dir), 80))
    half.mkdir()
    with Attempt.open(run_dir) as attempt:
        assert names(ledger) == set()
        attempt.close("preempted")
    assert names(ledger) == {"run/checkpoints/.step-00000080.tmp"}


def test_a_run_that_is_taken_between_looking_and_removing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sweeps.gc import remove

    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", None)
    half = files.temporary_path(layout.checkpoint(layout.checkpoints(run_dir), 80))
    half.mkdir(parents=True)
    removable = find(ledger)
    with Attempt.open(run_dir) as attempt:
        assert remove(removable, print) == 0
        attempt.close("preempted")
    assert half.is_dir()
    assert "in use now" in capsys.readouterr().out


def test_what_cannot_be_removed_is_named_and_the_rest_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Ledger(tmp_path), "run", "ok", 40, 80, 120)
    rmtree = shutil.rmtree

    def busy(path: Path) -> None:
        if "00000040" in path.name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), ".nfs0001")
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", busy)
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    kept = f"kept {tmp_path}/runs/run/checkpoints/step-00000040, or a part of it: Device or resource busy"
    assert kept in capsys.readouterr().out.splitlines()
    assert not (tmp_path / "runs/run/checkpoints/step-00000080").exists()


def test_files_aside_go_when_their_process_is_dead_and_they_are_old(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", "ok")
    pid = dead_pid()
    aside(run_dir / "attempts" / "1" / f".exit.json.{pid}.tmp")
    aside(run_dir / f".config.yaml.{os.getpid()}.tmp")  # of a living process
    aside(run_dir / f".run.json.{pid}.tmp", old=False)
    aside(ledger.root / "stages" / f".abc.{pid}.tmp")
    aside(run_dir / "samples" / f".test-00000040.parquet.{pid}-a1b2c3d4.tmp")
    aside(ledger.root / "sweeps" / "s" / f".manifest.jsonl.{pid}-a1b2c3d4.tmp")
    aside(ledger.root / f".0123456789ab.{pid}-a1b2c3d4.tmp" / "config.yaml")
    os.utime(ledger.root / f".0123456789ab.{pid}-a1b2c3d4.tmp", (0, 0))
    assert names(ledger) == {
        f"run/attempts/1/.exit.json.{pid}.tmp",
        f"stages/.abc.{pid}.tmp",
        f"run/samples/.test-00000040.parquet.{pid}-a1b2c3d4.tmp",
        f"sweeps/s/.manifest.jsonl.{pid}-a1b2c3d4.tmp",
        f".0123456789ab.{pid}-a1b2c3d4.tmp",
    }
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert names(ledger) == set()


def test_files_aside_of_evaluations_diversity_and_reports_go_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    pid = dead_pid()
    abandoned = [
        ledger.root / "evaluations" / "0123456789ab" / f".r-0000.parquet.{pid}-a1b2c3d4.tmp",
        make_run(ledger, "run", "ok") / "diversity" / f".problems.parquet.{pid}-a1b2c3d4.tmp",
        tmp_path / "reports" / "eta" / f".summary.json.{pid}-a1b2c3d4.tmp",
        tmp_path / "reports" / ".cache" / f".samples.parquet.{pid}-a1b2c3d4.tmp",
        tmp_path / "reports" / ".cache" / "journals" / f".run.parquet.{pid}-a1b2c3d4.tmp",
    ]
    for path in abandoned:
        aside(path)
    half_report = tmp_path / "reports" / f".lad.{pid}-a1b2c3d4.tmp"
    aside(half_report / f".summary.json.{pid}-a1b2c3d4.tmp")
    os.utime(half_report, (0, 0))
    assert [item.path for item in find(ledger)] == sorted([*abandoned, half_report])
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert find(ledger) == []


def test_a_stage_goes_when_no_run_starts_from_it_and_every_run_has_said_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for name, old in (("used", True), ("unused", True), ("new", False)):
        (stage := ledger.root / "stages" / name).mkdir(parents=True)
        os.utime(stage, (time.time() - 2 * STALE_S * old,) * 2)
    record_stages(make_run(ledger, "first", "ok"), ["used"])
    silent = make_run(ledger, "second", None)
    assert names(ledger) == set()
    record_stages(silent, [])
    assert names(ledger) == {"stages/unused"}
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert sorted(path.name for path in (ledger.root / "stages").iterdir() if path.is_dir()) == ["new", "used"]


def test_all_stages_stay_while_a_run_cannot_be_read(tmp_path: Path) -> None:
    """A run of another version may name its stages in another way."""
    ledger = Ledger(tmp_path)
    (stage := ledger.root / "stages" / "unused").mkdir(parents=True)
    os.utime(stage, (time.time() - 2 * STALE_S,) * 2)
    run_dir = make_run(ledger, "run", "ok")
    record_stages(run_dir, [])
    assert names(ledger) == {"stages/unused"}
    info = json.loads(layout.info(run_dir).read_text())
    layout.info(run_dir).write_text(json.dumps({**info, "format": 99}))
    assert names(ledger) == set()


def test_a_stage_that_is_being_built_on_another_machine_stays(tmp_path: Path) -> None:
    """Its lock is held, though no process of this machine has the number of its builder and a download takes hours."""
    ledger = Ledger(tmp_path)
    store = layout.stages(tmp_path)
    half = files.temporary_path(store / "stage", f"{dead_pid()}-0123abcd")
    half.mkdir(parents=True)
    os.utime(half, (time.time() - 2 * STALE_S,) * 2)
    held = lock(layout.stage_lock(store, "stage"))
    assert held is not None
    assert names(ledger) == set()
    unlock(held)
    assert names(ledger) == {f"stages/{half.name}"}


def test_a_run_whose_lock_cannot_be_tested_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is another user's, who alone may open it."""
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", "ok", 40, 80)
    assert names(ledger) == {"run/checkpoints/step-00000040"}
    open_file = os.open

    def refuse(path: str | Path, *arguments: int) -> int:
        if path == layout.lock(run_dir):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_file(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    assert names(ledger) == set()


def test_retry_of_what_is_finished_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Ledger(tmp_path), "done", "ok")
    assert main(["retry", "done", "--home", str(tmp_path)]) == 0
    assert "nothing to start again" in capsys.readouterr().out
    assert main(["retry", "nobody", "--home", str(tmp_path)]) == 2
