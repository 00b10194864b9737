import re
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger import digests, inputs, layout
from rlvr.ledger.runs import flatten


def make_config(folder: Path) -> dict[str, Any]:
    """Two files, a directory of data, and a model with a large file."""
    (folder / "model").mkdir(parents=True)
    (folder / "databases" / "one").mkdir(parents=True)
    (folder / "train.jsonl").write_text("1\n" * 4 * digests.PIECE)
    (folder / "a.jsonl").write_text("2\n")
    (folder / "databases" / "one" / "db.sqlite").write_text("3")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(bytes(8 * digests.PIECE))
    task = {"_target_": "rlvr.task.sql.Sql", "train": str(folder / "train.jsonl")}
    task |= {"test": {"a": [str(folder / "a.jsonl"), "organisation/name"], "hub": "organisation/name"}}
    task |= {"databases": str(folder / "databases"), "template": "/no file"}
    task |= {"reader": {"path": str(folder / "model")}}
    return {"task": task, "model": {"path": str(folder / "model")}}


def test_files_and_directories_on_this_machine_are_what_a_run_reads(tmp_path: Path) -> None:
    digests = inputs.inputs(make_config(tmp_path / "one"))
    assert set(digests) == {"task.train", "task.test.a", "task.databases", "model.path"}
    assert inputs.inputs(make_config(tmp_path / "two")) == digests  # independent of places and times
    assert inputs.inputs({"task": {"size": 5}, "model": None}) == {}
    config = make_config(tmp_path / "data")
    layout.journal(tmp_path).write_text("a step\n")
    assert inputs.changed(tmp_path, config) == ""  # a run without recorded inputs continues
    inputs.record(tmp_path, config)
    assert layout.inputs(tmp_path).is_file()


def edit(path: Path, place: int, byte: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + 1 or None] = byte
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "knob", "place"),
    [
        ("train.jsonl", "task.train", 2 * digests.PIECE),  # one row of many
        ("a.jsonl", "task.test.a", 0),
        ("databases/one/db.sqlite", "task.databases", 0),
        ("model/config.json", "model.path", 0),
        ("model/model.safetensors", "model.path", 2 * digests.PIECE),  # between three pieces
    ],
)
def test_a_run_ends_before_other_content(
    file: str, knob: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "WHOLE", 2 * digests.PIECE)  # so that the model's file is read in part
    config, run_dir = make_config(tmp_path / "data"), tmp_path / "run"
    run_dir.mkdir()
    inputs.record(run_dir, config)
    changed = tmp_path / "data" / file
    edit(changed, place, b"x")
    inputs.record(run_dir, config)  # allowed: the run has recorded no step
    assert inputs.changed(run_dir, config) == ""
    layout.journal(run_dir).write_text("a step\n")
    inputs.record(run_dir, config)
    edit(changed, place, b"y")
    path = f"{knob}={flatten(config)[knob]}"
    assert inputs.changed(run_dir, config) == path
    with pytest.raises(ValueError, match=f"{re.escape(path)}: its content is not what this run began with"):
        inputs.record(run_dir, config)


def test_before_its_first_step_a_run_records_only_the_newest_version_of_its_users_code(tmp_path: Path) -> None:
    assert (inputs.record_code(tmp_path, {}), list(tmp_path.iterdir())) == ([], [])
    for version in ("a", "b"):
        assert inputs.record_code(tmp_path, {"filtered": version, "days": "d"}) == []
    assert inputs.recorded_code(tmp_path) == {"filtered": ("b",), "days": ("d",)}
    layout.journal(tmp_path).write_text("a step\n")
    for changed in (["filtered"], []):
        assert inputs.record_code(tmp_path, {"filtered": "c", "days": "d"}) == changed
    assert inputs.recorded_code(tmp_path) == {"days": ("d",), "filtered": ("b", "c")}
    for damaged in ('{"filtered": "a"}', '{"filt'):
        layout.own_code(tmp_path).write_text(damaged)
        assert inputs.recorded_code(tmp_path) == {}
