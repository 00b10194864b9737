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
from sweeps.gc import STALE_S, find, remove

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


def of_steps(*steps: int) -> set[str]:
    return {f"run/checkpoints/step-{step:08d}" for step in steps}


def test_a_finished_run_keeps_its_newest_checkpoint_and_others_keep_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    done, half = make_run(ledger, "done", "ok", 40, 80, 120), make_run(ledger, "half", "preempted", 40, 80)
    assert main(["gc", "--home", str(tmp_path)]) == 0
    assert "can be removed: python -m sweeps gc --yes" in capsys.readouterr().out
    assert (len(list((done / "checkpoints").iterdir())), [left.size for left in find(ledger)]) == (3, [KB, KB])
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert [p.name for p in (done / "checkpoints").iterdir()] == ["step-00000120"]
    assert len(list((half / "checkpoints").iterdir())) == 2
    assert not find(ledger)
    assert ledger.state("done").state == "finished"


def test_a_damaged_checkpoint_can_go_and_the_best_of_a_finished_run_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "half", "preempted", 40, 80)
    set_aside(run_dir / "checkpoints" / "step-00000080")
    assert names(ledger) == {"half/checkpoints/damaged-step-00000080"}
    run_dir = make_run(ledger, "run", "ok", 40, 80, 120, 160)
    for step, score in ((40, 0.5), (80, 0.7), (120, None)):
        state = {"extra": {"step": step, "score": score}}
        (run_dir / "checkpoints" / f"step-{step:08d}" / "trainer.json").write_text(json.dumps(state))
    assert names(ledger) == {"half/checkpoints/damaged-step-00000080", *of_steps(40, 120)}


def test_a_checkpoint_that_an_evaluation_waits_for_stays(tmp_path: Path) -> None:
    """Also where the evaluation reached the home through a link, as /home/me/project often is on a cluster."""
    home = tmp_path / "disk"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    ledger = Ledger(home)
    run_dir = make_run(ledger, "run", "ok", 40, 80, 120)
    named = tmp_path / "link" / run_dir.relative_to(home) / "checkpoints" / "step-00000040"
    evaluation = ledger.create_run("evaluation", json.dumps({"policy": {"path": str(named)}}), {"name": "evaluation"})
    assert names(ledger) == names(Ledger(tmp_path / "link")) == of_steps(80)
    config = layout.config(evaluation)
    config.rename(lost := config.with_suffix(".lost"))  # what it reads is not known
    assert names(ledger) == set()
    lost.rename(config)
    with Attempt.open(evaluation) as attempt:
        attempt.close("ok")
    assert names(ledger) == of_steps(40, 80)


def test_what_was_half_written_goes_unless_the_run_is_held_or_taken_between_looking_and_removing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    run_dir = make_run(ledger, "run", None, 40)
    half = files.temporary_path(layout.checkpoint(layout.checkpoints(run_dir), 80))
    half.mkdir()
    removable = find(ledger)
    with Attempt.open(run_dir) as attempt:
        assert (names(ledger), remove(removable, print)) == (set(), 0)
        attempt.close("preempted")
    assert half.is_dir()
    assert "in use now" in capsys.readouterr().out
    assert names(ledger) == {"run/checkpoints/.step-00000080.tmp"}


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
    ledger, pid = Ledger(tmp_path), dead_pid()
    run_dir, of_dead = make_run(ledger, "run", "ok"), f"{pid}-a1b2c3d4.tmp"
    reports = tmp_path / "reports"
    abandoned = [
        run_dir / "attempts" / "1" / f".exit.json.{pid}.tmp",
        run_dir / "samples" / f".test-00000040.parquet.{of_dead}",
        run_dir / "diversity" / f".problems.parquet.{of_dead}",
        ledger.root / "stages" / f".abc.{pid}.tmp",
        ledger.root / "sweeps" / "s" / f".manifest.jsonl.{of_dead}",
        ledger.root / "evaluations" / "0123456789ab" / f".r-0000.parquet.{of_dead}",
        reports / "eta" / f".summary.json.{of_dead}",
    ]
    for path in abandoned:
        aside(path)
    of_report = {reports / f".lad.{of_dead}": f".summary.json.{of_dead}"}  # one item, whatever it contains
    folders = {ledger.root / f".0123456789ab.{of_dead}": "config.yaml", **of_report}
    for folder, content in folders.items():
        aside(folder / content)
        os.utime(folder, (0, 0))
    aside(run_dir / f".config.yaml.{os.getpid()}.tmp")  # of a living process
    aside(run_dir / f".run.json.{pid}.tmp", old=False)
    assert [item.path for item in find(ledger)] == sorted([*abandoned, *folders])
    assert (main(["gc", "--yes", "--home", str(tmp_path)]), find(ledger)) == (0, [])


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
    info = layout.info(silent).read_text()
    layout.info(silent).write_text(json.dumps({**json.loads(info), "format": 99}))  # by another version
    assert names(ledger) == set()
    layout.info(silent).write_text(info)
    assert main(["gc", "--yes", "--home", str(tmp_path)]) == 0
    assert sorted(path.name for path in (ledger.root / "stages").iterdir() if path.is_dir()) == ["new", "used"]


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
