"""Data and models that are named as the Hugging Face hub names them, of its own clients and a server like it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlvr.config.checks import Checker
from rlvr.config.compose import composing
from rlvr.records import NotAtHand
from tests.support.composed import REGISTRY, composed
from tests.support.hub_server import serving

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(5)]
CONFIGS = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: data/train.jsonl}
  - {split: test, path: data/test.jsonl}
---
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that knows one data set and one model."""
    data, model, cache = (tmp_path_factory.mktemp(name) for name in ("data", "model", "cache"))
    (data / "data").mkdir()
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        (data / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "README.md").write_text(CONFIGS)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"):
        (model / name).write_text(f"content of {name}")
    with serving({"datasets/some/sums": data, "models/some/model": model}) as address:
        yield {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(cache), "PYTHONWARNINGS": "ignore"}


def python(program: str, hub: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], env=hub, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


READ = """
from rlvr.task.read import read
for where in {names}:
    try:
        table = read(where, "train")
        print(table.name, len(table.rows), table.rows[-1])
    except ValueError as error:
        print(error)
"""


def test_data_of_the_hub_is_read_by_name_config_and_split(hub: dict[str, str]) -> None:
    names = ["some/sums", "some/sums/main:test", "some/sums:train[:3]", "some/none", "some/sums/other", "some/sums:dev"]
    assert python(READ.format(names=names), hub) == [
        f"sums 5 ('some/sums, row 5', {ROWS[4]})",
        f"sums 2 ('some/sums/main:test, row 2', {ROWS[1]})",
        f"sums 3 ('some/sums:train[:3], row 3', {ROWS[2]})",
        "some/none cannot be read from the hub: Dataset 'some/none' doesn't exist on the Hub or cannot be accessed.",
        "some/sums/other cannot be read from the hub: BuilderConfig 'other' not found. Available: ['main']",
        "some/sums:dev cannot be read from the hub: Unknown split \"dev\". Should be one of ['train', 'test'].",
    ]


def test_a_model_of_the_hub_is_downloaded_without_files_that_are_pickled(hub: dict[str, str]) -> None:
    program = """
from rlvr.ledger.policies import downloaded
directory = downloaded("some/model")
print(*sorted(file.name for file in directory.iterdir()))
print((directory / "model.safetensors").read_text())
try:
    downloaded("some/other")
except ValueError as error:
    print(error)
"""
    listed, weights, refused = python(program, hub)
    assert listed == "config.json model.safetensors tokenizer.json"
    assert weights == "content of model.safetensors"
    assert refused.startswith("some/other is no directory here, and the hub did not give it (RepositoryNotFoundError).")


def test_a_dry_run_asks_a_hub_that_does_not_answer_once_for_all_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again for half a minute; a hub out of reach is played by a client that says so at once."""
    asked = list[str]()

    def unreachable(path: str, *_: object, **__: object) -> None:
        asked.append(path)
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with composing():
        runs = [composed("task=math", "task.train=some/sums", "task.test=some/sums", f"seed={n}") for n in range(3)]
    checker = Checker(REGISTRY, dry_run=True)
    for run in runs:
        checker.check_task(*run)
    assert asked == ["some/sums"]
    assert list(checker.unchecked) == ["some/sums cannot be read from the hub: no network"]
    launched = Checker(REGISTRY)
    for run in runs[:2]:  # what is not a dry run is refused, again and again
        with pytest.raises(NotAtHand, match="no network"):
            launched.check_task(*run)
