"""What the commands for other trackers share, and a home to test them on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker import tensorboard, trackio, wandb
from rlvr.tracker.copies import copied_run

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


@pytest.mark.parametrize("module", [tensorboard, wandb, trackio])
def test_without_its_package_the_command_says_what_to_install(module, tmp_path, monkeypatch, capsys) -> None:
    name = module.TARGET.name
    for loaded in [key for key in sys.modules if key.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, name, None)
    assert module.main(["--home", str(make_home(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {name} is not installed: pip install 'rlvr[{name}]'\n"
