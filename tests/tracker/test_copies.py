"""Journals in other trackers, read back with the trackers' own readers, or from their files."""

import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.copies import EVENTS, TRACKERS, Copier, copied_run
from rlvr.tracker.cursor import is_behind
from rlvr.tracker.mlflow import LEFT, main
from tests.tracker.places import end_attempt

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


def test_a_run_is_copied_with_its_config_and_without_addresses(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    run = copied_run(layout.run(home, "abc123def456"), Ledger(home).sweeps())
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
        assert main(["--uri", f"{name}:out", "--home", str(home)]) == 2
        assert capsys.readouterr().err == f"error: tracker={name} needs its package: pip install 'rlvr[{name}]'.\n"


def test_bad_input_is_an_error_of_one_line(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    home = str(make_home(tmp_path))
    (tmp_path / "file").touch()
    assert main(["--uri", "tensorboard:file", "--home", home]) == LEFT
    assert capsys.readouterr().out.endswith(f"{tmp_path}/file/eta/grpo-s0-abc123: Not a directory.\n")
    assert main(["--uri", "tensorboard", "--home", home, "--sweep", "nobody"]) == 2
    assert "no sweep nobody here" in capsys.readouterr().err


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """{metric: (step, time, value) of each point}, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(e.step, e.wall_time, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_has_every_step_once_with_its_own_time_while_the_run_goes_on(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    home = make_home(tmp_path)
    folder = tmp_path / "tensorboard" / "eta" / "grpo-s0-abc123"
    live, run_dir = Copier(home, "tensorboard"), layout.run(home, "abc123def456")
    assert live.ship([run_dir]).shipped == {"abc123def456": 2}
    assert scalars(folder)["a/b"] == [(1, 10.0, 0.5), (2, 11.0, 0.25)]
    journal(home, *FIRST, *SECOND)
    assert main(["--uri", "tensorboard", "--home", str(home)]) == 0  # leaves to the other pass what that has open
    assert len(scalars(folder)["a/b"]) == 2
    assert [live.ship([run_dir]).shipped for _ in range(2)] == [{"abc123def456": 1}, {}]
    values = scalars(folder)
    assert values["a/b"] == [(1, 10.0, 0.5), (2, 11.0, 0.25), (3, 12.5, 0.125)]
    ((step, _, value),) = values["c"]
    assert step == 2
    assert math.isnan(value)
    (file,) = folder.iterdir()
    assert file.name.startswith(EVENTS)
    assert all(word in file.read_bytes() for word in (b"lr", b"loss", b"grpo"))  # the knobs of HPARAMS


def test_a_journal_of_which_lines_were_deleted_is_begun_again(tmp_path):
    pytest.importorskip("tensorboard")
    home = make_home(tmp_path)
    live, run_dir = Copier(home, "tensorboard"), layout.run(home, "abc123def456")
    live.ship([run_dir])
    journal(home, FIRST[1], *SECOND)
    live.ship([run_dir])
    live.ship([run_dir])
    assert scalars(tmp_path / "tensorboard/eta/grpo-s0-abc123")["a/b"] == [(2, 11.0, 0.25), (3, 12.5, 0.125)]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), sqlite3.OperationalError("locked")])
def test_what_a_tracker_could_not_take_is_sent_by_the_next_pass(tmp_path, monkeypatch, fault):
    writers = pytest.importorskip("tensorboard.summary.writer.record_writer")
    home = make_home(tmp_path)
    live, run_dir = Copier(home, "tensorboard"), layout.run(home, "abc123def456")
    live.ship([run_dir])
    journal(home, *FIRST, *SECOND)
    with monkeypatch.context() as full:
        full.setattr(writers.RecordWriter, "write", Mock(side_effect=fault))
        assert live.ship([run_dir]).error
    end_attempt(run_dir, 1, "ok")
    assert not live.ship([run_dir]).error
    values = scalars(tmp_path / "tensorboard/eta/grpo-s0-abc123")["a/b"]
    assert values == [(1, 10.0, 0.5), (2, 11.0, 0.25), (3, 12.5, 0.125)]


# The run grows while it is followed; then a new pass, as after a shipper that was killed.
THRICE = """
import sys
from pathlib import Path
from rlvr.tracker.copies import Copier
journal, second, uri, home = sys.argv[1:]
copier = Copier(Path(home), uri)
def ship(copier):
    report = copier.ship([Path(journal).parent])
    assert not report.error, report.error
    return report.shipped
counts = [ship(copier)]
with open(journal, "ab") as file: file.write(open(second, "rb").read())
counts += [ship(copier), ship(copier)]
assert counts == [{"abc123def456": 2}, {"abc123def456": 1}, {}], counts
"""
AGAIN = """
for stack, *_ in copier._open.values(): stack.close()
assert ship(Copier(Path(home), uri)) == {"abc123def456": 3}
"""


def copied_thrice(home: Path, uri: str, script: str = THRICE + AGAIN, **environment: str) -> list[str]:
    """Output of a new process that follows the run while it grows. (Trackers read variables once.)"""
    (home / "second").write_bytes(b"".join(SECOND))
    grown = [str(layout.journal(layout.run(home, "abc123def456"))), str(home / "second")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *grown, uri, str(home)],
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
    printed = copied_thrice(home, f"trackio:{out}", THRICE + AGAIN + read)
    assert printed == [
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
    copied_thrice(make_home(tmp_path), "wandb:wb", WANDB_MODE="offline")
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
def test_wandb_has_everything_after_the_death_of_a_shipper(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    killed = THRICE + "import os, signal, time; time.sleep(3); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(AssertionError):
        copied_thrice(make_home(tmp_path), "wandb:wb", killed, WANDB_MODE="offline")
    journal(tmp_path, *FIRST)
    copied_thrice(tmp_path, "wandb:wb", WANDB_MODE="offline")
    (file,) = (tmp_path / "wb" / "wandb").glob("offline-run-*/run-abc123def456.wandb")
    items = [{i.key or "/".join(i.nested_key): i.value_json for i in r.history.item} for r in records(file)]
    assert [i["_step"] for i in items if "a/b" in i] == ["1", "2", "3"]


@pytest.mark.slow
def test_the_error_of_wandb_without_a_key_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    refused = THRICE.replace("assert not report.error, report.error", "sys.exit(print(report.error))")
    printed = copied_thrice(make_home(tmp_path), "wandb:wb", refused)
    assert printed[-1].startswith("No API key configured")


def test_a_run_that_has_ended_is_sent_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_dir = layout.run(make_home(tmp_path), "abc123def456")
    end_attempt(run_dir, 1, "ok")
    passes = [Copier(tmp_path, "tensorboard").ship([run_dir]) for _ in range(2)]
    assert [report.shipped for report in passes] == [{"abc123def456": 2}, {}]
    assert not is_behind(run_dir)
