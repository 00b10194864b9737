"""A stage is built once, by one process, and is complete or absent: with real processes, some of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.stages import record_stages, recorded_stages, stage, stage_id, task_identity
from tests.support.scripted import Echo

ROOT = Path(__file__).parents[2]
IDENTITY = {"version": 1, "source": "test"}
STAGE = "0da07c5bf87df7d9"  # printf '{"source": "test", "version": 1}' | sha256sum

# Builds "whole" in two halves, `pause` seconds apart, and notes in a journal that it began.
BUILDER = """
import logging, os, sys, time
from pathlib import Path
from rlvr.ledger import stages as stage
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
stage.SAY_WAITING_EVERY_S = 0.2
store, pause = Path(sys.argv[1]), float(sys.argv[2])

def build(directory):
    with (store / "journal").open("a") as journal:
        journal.write(f"{os.getpid()}\\n")
    with (directory / "weights").open("w") as file:
        file.write("first half, ")
        file.flush()
        print("half", flush=True)
        time.sleep(pause)
        file.write("second half")
    return {"made": "whole"}

print("at", stage.stage(store, {"version": 1, "source": "test"}, build), flush=True)
"""


def start(store: Path, pause: float) -> subprocess.Popen[str]:
    store.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILDER, str(store), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert any(printed.startswith(line) for printed in process.stdout)


def check_whole(store: Path) -> None:
    directory = store / STAGE
    assert (directory / "weights").read_text() == "first half, second half"
    assert json.loads((directory / "stage.json").read_text())["made"] == "whole"
    assert {path.name for path in store.iterdir()} == {directory.name, f"{directory.name}.lock", "journal"}


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, 1.0) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len((tmp_path / "journal").read_text().splitlines()) == 1
    assert all(f"at {tmp_path / STAGE}" in output for output in outputs)
    check_whole(tmp_path)


def test_a_killed_build_leaves_nothing_and_the_waiting_process_builds(tmp_path: Path) -> None:
    victim = start(tmp_path, 60)
    wait_for(victim, "half")
    heir = start(tmp_path, 0)
    wait_for(heir, "waiting for another process")
    assert not (tmp_path / STAGE).exists()
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    killed = time.monotonic()
    wait_for(heir, "at")
    assert heir.wait() == 0
    assert time.monotonic() - killed < 10
    assert len((tmp_path / "journal").read_text().splitlines()) == 2
    check_whole(tmp_path)


def test_a_build_that_fails_leaves_no_stage_and_frees_the_lock(tmp_path: Path) -> None:
    def fail(directory: Path) -> dict[str, Any]:
        (directory / "weights").write_text("half")
        raise RuntimeError("no memory")

    def work(directory: Path) -> dict[str, Any]:
        (directory / "weights").write_text("whole")
        return {}

    with pytest.raises(RuntimeError, match="no memory"):
        stage(tmp_path, IDENTITY, fail)
    assert not (tmp_path / STAGE).exists()
    assert (stage(tmp_path, IDENTITY, work) / "weights").read_text() == "whole"
    assert not list(tmp_path.glob(".*"))


def test_what_another_host_has_built_in_the_meantime_is_taken(tmp_path: Path) -> None:
    """Where locks do not hold between hosts."""

    def work(directory: Path) -> dict[str, Any]:
        (directory / "weights").write_text("ours")
        (tmp_path / STAGE).mkdir()
        (tmp_path / STAGE / "weights").write_text("theirs")
        return {}

    assert (stage(tmp_path, IDENTITY, work) / "weights").read_text() == "theirs"
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_record_of_stages_reads_as_none(tmp_path: Path) -> None:
    record_stages(tmp_path, ["0123456789abcdef"])
    assert recorded_stages(tmp_path) == ["0123456789abcdef"]
    for content in ('{"stageq": ["0123456789abcdef"]}', '{"stages": 3}', "{"):
        (tmp_path / "stages.json").write_text(content)
        assert recorded_stages(tmp_path) is None, content


def test_the_identity_of_a_task_is_its_knobs_words_and_demonstrations() -> None:
    plain = task_identity(Echo(length=3))
    assert plain == task_identity(Echo(length=3))
    assert plain["knobs"] == {"length": 3, "shift": 0}
    assert len({stage_id(task_identity(Echo(length=3, shift=shift))) for shift in (0, 1)}) == 2

    class Newer(Echo):  # the same knobs, another generator
        def demonstration(self, index: int) -> tuple[str, str]:
            return super().demonstration(index + 1)

    class Named(Echo):  # a task may define its identity
        identity: Any = {"only": "this"}  # noqa: RUF012

    assert task_identity(Named(length=3))["knobs"] == {"only": "this"}
    newer = task_identity(Newer(length=3))
    assert newer["knobs"] == plain["knobs"]
    assert newer["demonstrations"] != plain["demonstrations"]


def test_a_damaged_stage_is_kept_aside_and_built_again(tmp_path: Path) -> None:
    built = list[str]()

    def build(directory: Path) -> dict[str, Any]:
        built.append(directory.name)
        (directory / "weights").write_text("whole")
        return {}

    first = stage(tmp_path, IDENTITY, build)
    assert (stage(tmp_path, IDENTITY, build), len(built)) == (first, 1)
    (first / "weights").write_text("whale")
    assert (stage(tmp_path, IDENTITY, build), len(built)) == (first, 2)
    assert (first / "weights").read_text() == "whole"
    assert (tmp_path / f"damaged-{first.name}" / "weights").read_text() == "whale"
