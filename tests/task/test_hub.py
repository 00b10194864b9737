"""Data and models that are named as the Hugging Face hub names them, of its own clients and a server like it."""

import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlvr.config.checks import Checker
from rlvr.records import NotAvailable
from tests.support.composed import REGISTRY, composed
from tests.support.composing import composing
from tests.support.hub_server import serving
from tests.support.tasks import write_jsonl

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
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        write_jsonl(data / "data" / f"{split}.jsonl", rows)
    (data / "README.md").write_text(CONFIGS)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"):
        (model / name).write_text(f"content of {name}")
    with serving({"datasets/some/sums": data, "models/some/model": model}) as address:
        yield {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(cache), "PYTHONWARNINGS": "ignore"}


def python(program: str, hub: dict[str, str], *words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, *words], env=hub, capture_output=True, text=True)
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


@pytest.mark.slow
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
    assert (listed, weights) == ("config.json model.safetensors tokenizer.json", "content of model.safetensors")
    assert refused.startswith("some/other is no directory here, and the hub did not give it (RepositoryNotFoundError).")


@contextmanager
def a_hub_that_hangs_up() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the line with which each request to it begins."""
    requests = list[str]()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            requests.append(self.rfile.readline().decode().strip())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()


READ_IN_A_DRY_RUN = """
from datasets import config
from huggingface_hub import constants
from rlvr.task.read import BriefHub, read
hub = BriefHub()
for where in {names}:
    with hub.in_use():
        try:
            table = read(where, "train")
            print(table.name, len(table.rows), table.rows[-1])
        except ValueError as error:
            print(error)
print(config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
"""


@pytest.mark.slow
def test_a_dry_run_asks_a_hub_out_of_reach_once_and_reads_what_is_in_its_cache(hub: dict[str, str]) -> None:
    """Its client asks six times for each data set, for half a minute."""
    python(READ.format(names=["some/sums"]), hub)  # into the cache
    with a_hub_that_hangs_up() as (address, requests):
        names = ["some/none", "some/sums", "some/other/main:test"]
        lines = python(READ_IN_A_DRY_RUN.format(names=names), {**hub, "HF_ENDPOINT": address})
    silent = "cannot be read from the hub: it does not answer, and its cache on this machine has no such data"
    assert lines == [
        f"some/none {silent}",
        f"sums 5 ('some/sums, row 5', {ROWS[4]})",
        f"some/other/main:test {silent}",
        "False False",  # a launch of the same process asks as ever
    ]
    assert requests == ["HEAD / HTTP/1.1"]


DRY_RUN = """
import sys
from rlvr.run import main
sys.exit(main([*sys.argv[1:], *"cluster=local task=math task.train=a/b task.test=a/b".split(), "--dry-run"]))
"""
GOAL = "hydra.sweeper.metrics=evaluation/b/avg_at_8 hydra.sweeper.directions=maximize"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["study=beta seed=0", f"-m hydra/sweeper=optuna lr=interval(0,1) {GOAL}"])
def test_what_looks_at_the_data_for_names_of_metrics_does_not_wait_for_the_hub_either(
    hub: dict[str, str], words: str, tmp_path: Path
) -> None:
    """A study with claims, and a search: half a minute of attempts, and of a search a message about another thing."""
    with a_hub_that_hangs_up() as (address, requests):
        lines = python(DRY_RUN, {**hub, "HF_ENDPOINT": address, "RLVR_HOME": str(tmp_path)}, *words.split())
    assert "Not checked here: a/b cannot be read from the hub: it does not answer" in "\n".join(lines)
    assert set(requests) == {"HEAD / HTTP/1.1"}


@pytest.mark.slow
def test_a_dry_run_reads_from_a_hub_that_answers(hub: dict[str, str]) -> None:
    assert python(READ_IN_A_DRY_RUN.format(names=["some/sums/main:test", "some/none"]), hub) == [
        f"sums 2 ('some/sums/main:test, row 2', {ROWS[1]})",
        "some/none cannot be read from the hub: Dataset 'some/none' doesn't exist on the Hub or cannot be accessed.",
        "False False",
    ]


def test_a_dry_run_asks_a_hub_that_does_not_answer_once_for_all_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again for half a minute; a data set out of reach is played by a client that says so at once."""
    requested = list[str]()

    def unreachable(path: str, *_: object, **__: object) -> None:
        requested.append(path)
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with composing():
        runs = [composed("task=math", "task.train=some/sums", "task.test=some/sums", f"seed={n}") for n in range(3)]
    checker = Checker(REGISTRY, dry_run=True)
    with serving({}) as address:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        for run in runs:
            checker.check_task(*run)
    assert requested == ["some/sums"]
    assert list(checker.unchecked) == ["some/sums cannot be read from the hub: no network"]
    launched = Checker(REGISTRY)
    for run in runs[:2]:  # what is not a dry run is refused, again and again
        with pytest.raises(NotAvailable, match="no network"):
            launched.check_task(*run)
