"""Journals in other trackers, read back with the trackers' own readers, or from their files."""

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.copies import EVENTS, TRACKERS, copied_run, main

CONFIG = """seed: 0
lr: 0.001
loss:
  _target_: x
  clip: 0.2
task:
  train: /home/ada/secret/train.jsonl
  test: {math500: /data/math500.jsonl, aime: organisation/aime}
  files: [/data/one.jsonl, two.jsonl]
  reader: {path: /home/ada/model, chat: true}
tracker:
  uri: http://me:secret@host
choices:
  loss: grpo
"""


def journal(home: Path, *lines: bytes) -> None:
    layout.journal(layout.run(home, "abc123def456")).write_bytes(b"".join(lines))


FIRST = [encode(1, 10.0, 1, {"a/b": 0.5}), encode(2, 11.0, 1, {"a/b": 0.25, "c": float("nan")})]
SECOND = [encode(2, 99.0, 2, {"a/b": 9.0}), encode(3, 12.5, 2, {"a/b": 0.125})]  # step 2 was measured again


def make_home(home: Path) -> Path:
    """One run of a named sweep, of two steps."""
    ledger = Ledger(home)
    ledger.create_run("abc123def456", CONFIG, {"name": "grpo-s0", "arm": "grpo", "study": "eta"})
    about = {"study": "eta", "name": "pilot", "tags": "cpu, x", "swept": {"lr": ["0.001"], "loss": ["grpo"]}}
    ledger.record_sweep("s1", about, [{"run_id": "abc123def456"}])
    journal(home, *FIRST)
    return home


def test_a_run_is_copied_by_step_with_its_config_and_without_addresses(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    journal(home, FIRST[1], SECOND[0], SECOND[1], FIRST[0])  # step 1 was lost, and taken again at the end
    run = copied_run(layout.run(home, "abc123def456"), Ledger(home).sweeps())
    assert [(record.step, record.time) for record in run.records] == [(1, 10.0), (2, 11.0), (3, 12.5)]
    assert (run.name, run.arm, run.study, run.tags) == ("grpo-s0", "grpo", "eta", ("pilot", "cpu", "x"))
    assert run.knobs == {"lr": 0.001, "loss": "grpo"}
    of_task = {"train": "train.jsonl", "test.math500": "math500.jsonl", "test.aime": "organisation/aime"}
    assert run.config == {
        **{"seed": 0, "lr": 0.001, "loss._target_": "x", "loss.clip": 0.2, "loss": "grpo"},
        **{f"task.{key}": value for key, value in {**of_task, "files": '["one.jsonl", "two.jsonl"]'}.items()},
    }


def test_without_its_package_the_command_says_what_to_install(tmp_path, monkeypatch, capsys) -> None:
    home = make_home(tmp_path)
    for name in TRACKERS:
        for loaded in [key for key in sys.modules if key.partition(".")[0] == name]:
            monkeypatch.setitem(sys.modules, loaded, None)
        monkeypatch.setitem(sys.modules, name, None)
        assert main([name, "--home", str(home), "--out", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err == f"error: {name} is not installed: pip install 'rlvr[{name}]'\n"


def test_bad_input_is_an_error_of_one_line(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    home = str(make_home(tmp_path))
    (tmp_path / "file").touch()
    assert main(["tensorboard", "--home", home, "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/file/eta/grpo-s0-abc123: Not a directory.\n"
    assert main(["tensorboard", "--home", home, "--out", home, "--sweep", "nobody"]) == 2
    assert "no sweep nobody here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["tensorboard", "--home", home])
    assert "tensorboard needs --out" in capsys.readouterr().err


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """{metric: (step, time, value) of each point}, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(e.step, e.wall_time, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_has_every_step_once_with_its_own_time_however_often_it_is_written(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    home = make_home(tmp_path)
    Ledger(home).create_run("0123456789ab", CONFIG, {"name": "grpo-s1", "arm": "grpo", "study": "eta"})
    layout.info(layout.run(home, "0123456789ab")).write_text("{")
    journal(home, *FIRST, *SECOND)
    for _ in range(2):
        assert main(["tensorboard", "--home", str(home), "--out", str(tmp_path / "tb")]) == 1
    captured = capsys.readouterr()
    assert "run 0123456789ab" in captured.err
    assert "1 runs" in captured.out
    folder = tmp_path / "tb" / "eta" / "grpo-s0-abc123"
    assert [file.name for file in folder.iterdir()] == [EVENTS]
    values = scalars(folder)
    assert values["a/b"] == [(1, 10.0, 0.5), (2, 11.0, 0.25), (3, 12.5, 0.125)]
    ((step, _, value),) = values["c"]
    assert step == 2
    assert math.isnan(value)
    assert all(word in (folder / EVENTS).read_bytes() for word in (b"lr", b"loss", b"grpo"))  # the knobs of HPARAMS


THRICE = """
import sys
from rlvr.tracker.copies import main
journal, second, *arguments = sys.argv[1:]
codes = [main(arguments)]
with open(journal, "ab") as file: file.write(open(second, "rb").read())
codes += [main(arguments), main(arguments)]
assert codes == [0, 0, 0], codes
"""


def copied_thrice(home: Path, tracker: str, out: Path, script: str = THRICE, **environment: str) -> list[str]:
    """Output of a new process that copies the run, lets it grow and copies it twice. (Trackers read variables once.)"""
    (home / "second").write_bytes(b"".join(SECOND))
    grown = [str(layout.journal(layout.run(home, "abc123def456"))), str(home / "second")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *grown, tracker, "--home", str(home), "--out", str(out), "--sweep", "pilot"],
        env={**kept, "HOME": str(home), "NETRC": str(home / "netrc"), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_trackio_has_every_step_once_with_its_own_time_however_often_it_is_copied(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    home, out = make_home(tmp_path), tmp_path / "store"
    read = """
from trackio.sqlite_storage import SQLiteStorage as S
for log in S.get_logs("eta", "grpo-s0", run_id="abc123def456"): print(log["step"], log["timestamp"], log["a/b"])
print(S.get_runs("eta"))
"""
    printed = copied_thrice(home, "trackio", out, THRICE + read)
    assert printed == [
        *[f"1 runs: TRACKIO_DIR={out} trackio show"] * 3,
        "1 1970-01-01T00:00:10+00:00 0.5",
        "2 1970-01-01T00:00:11+00:00 0.25",
        "3 1970-01-01T00:00:12.500000+00:00 0.125",
        "['grpo-s0']",
    ]


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


@pytest.mark.slow
def test_wandb_has_every_step_once_with_its_own_time_however_often_it_is_copied(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    home, out = make_home(tmp_path), tmp_path / "wb"
    printed = copied_thrice(home, "wandb", out, WANDB_MODE="offline")
    assert printed == [f"1 runs: wandb sync {out}/wandb/offline-run-*"] * 3
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


@pytest.mark.slow
def test_the_error_of_wandb_without_a_key_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    refused = (
        "import sys; from rlvr.tracker.copies import main; sys.stderr = sys.stdout; assert main(sys.argv[3:]) == 2"
    )
    printed = copied_thrice(make_home(tmp_path), "wandb", tmp_path / "wb", refused)
    assert printed[-1].startswith("error: W&B: No API key configured")
