"""Journals as event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.tensorboard import FILE, main

pytest.importorskip("tensorboard")

CONFIG = "seed: 0\nlr: 0.001\nloss:\n  _target_: x\nchoices:\n  loss: grpo\n"


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """{metric: (step, time, value) of each point}, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(e.step, e.wall_time, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_every_step_arrives_once_with_its_own_time_however_often_it_is_written(tmp_path, capsys):
    ledger = Ledger(tmp_path)
    run_dir = ledger.create_run("abc123def456", CONFIG, {"name": "grpo-s0", "arm": "grpo", "study": "eta"})
    ledger.create_run("0123456789ab", CONFIG, {"name": "grpo-s1", "arm": "grpo", "study": "eta"})
    (layout.info(layout.run(tmp_path, "0123456789ab"))).write_text("{")
    ledger.record_sweep("s", {"swept": {"lr": ["0.001"], "loss": ["grpo"]}}, [{"run_id": "abc123def456"}])
    lines = [encode(1, 10.0, 1, {"a/b": 0.5}), encode(2, 11.0, 1, {"a/b": 0.25, "c": float("nan")})]
    lines += [encode(2, 99.0, 2, {"a/b": 9.0}), encode(3, 12.5, 2, {"a/b": 0.125})]  # step 2 was measured again
    layout.journal(run_dir).write_bytes(b"".join(lines))
    for _ in range(2):
        assert main(["--home", str(tmp_path), "--out", str(tmp_path / "tb")]) == 1  # one cannot be read, and is named
    captured = capsys.readouterr()
    assert "run 0123456789ab" in captured.err
    assert "1 runs" in captured.out
    folder = tmp_path / "tb" / "eta" / "grpo-s0-abc123"
    assert [file.name for file in folder.iterdir()] == [FILE]
    values = scalars(folder)
    assert values["a/b"] == [(1, 10.0, 0.5), (2, 11.0, 0.25), (3, 12.5, 0.125)]
    ((step, _, value),) = values["c"]
    assert step == 2
    assert math.isnan(value)
    assert all(word in (folder / FILE).read_bytes() for word in (b"lr", b"loss", b"grpo"))  # the knobs of HPARAMS


def test_the_error_for_a_directory_that_cannot_be_written_is_one_line(tmp_path, capsys):
    Ledger(tmp_path).create_run("abc123def456", CONFIG, {"name": "grpo-s0", "arm": "grpo", "study": "eta"})
    (tmp_path / "file").touch()
    assert main(["--home", str(tmp_path), "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/file/eta/grpo-s0-abc123: Not a directory.\n"


def test_an_unknown_sweep_is_rejected(tmp_path, capsys):
    assert main(["--home", str(tmp_path), "--out", str(tmp_path), "--sweep", "nobody"]) == 2
    assert "no sweep 'nobody'" in capsys.readouterr().err
