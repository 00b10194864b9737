"""docs/programs.md, taken at its word: a loop of plain PyTorch under a sweep, killed twice, decided by the analysis."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.journal import read
from tests.end_to_end.test_extending import rlvr, runs, start, written

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(900)]

STUDY = ["run", "--config-dir", "mine", "study=width", "cluster=local", "tracker=none", "checkpoint.every=5"]
ARMS = {f"reinforce-width{width}-lr{lr}" for width in (2, 32) for lr in (0.01, 0.02)}


def recorded(run_dir: Path) -> dict[int, Mapping[str, float]]:
    """The metrics of each step, which is in the journal once."""
    records = read(layout.journal(run_dir)).records
    assert len({record.step for record in records}) == len(records)
    return {record.step: record.metrics for record in records}


def newest_state(run_dir: Path) -> int:
    """The step of a run's newest checkpoint; 0 without any."""
    return max((int(path.name.removeprefix("step-")) for path in run_dir.glob("checkpoints/step-*")), default=0)


def kill_amid_a_run(home: Path, cwd: Path, finished: int) -> None:
    """Start the study, and kill all of its processes once so many runs are finished and another has saved a state."""
    process = start(*STUDY, home=home, cwd=cwd)
    deadline = time.monotonic() + 400
    while process.poll() is None and time.monotonic() < deadline:
        ended = sum(1 for end in home.glob("runs/*/attempts/*/exit.json") if json.loads(end.read_text())["code"] == 0)
        open_runs = [path for path in runs(home).values() if not list(path.glob("attempts/*/exit.json"))]
        if ended >= finished and any(0 < newest_state(path) <= 30 for path in open_runs):  # far from its end
            break
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()[0]
    jobs = [job for path in open_runs for job in path.glob("attempts/*/job.json")]
    os.killpg(process.pid, signal.SIGKILL)
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(job.read_text())["pid"], signal.SIGKILL)
    process.communicate()


def test_a_loop_of_plain_pytorch_is_swept_killed_twice_and_decided(tmp_path: Path) -> None:
    mine, home = written(tmp_path, "programs.md"), tmp_path / "home"
    assert len((mine / "reinforce.py").read_text().splitlines()) < 70
    code, out = rlvr(*STUDY, "--dry-run", home=home, cwd=tmp_path)
    assert code == 0, out
    assert "12 runs, 0 finished, 12 to do" in out
    assert not home.exists() or not list(home.glob("runs/*"))
    kill_amid_a_run(home, tmp_path, finished=1)
    kill_amid_a_run(home, tmp_path, finished=5)
    code, out = rlvr(*STUDY, home=home, cwd=tmp_path)
    assert code == 0, out
    assert "12 of 12 runs finished" in out
    finished = runs(home)
    assert finished.keys() == {f"{arm}-s{seed}" for arm in ARMS for seed in range(3)}
    assert all(list(recorded(run_dir)) == list(range(61)) for run_dir in finished.values())
    logs = {
        name: "".join(log.read_text() for log in path.glob("attempts/*/log.txt")) for name, path in finished.items()
    }
    resumed = {name for name, log in logs.items() if "resuming from" in log}
    assert len(resumed) >= 2

    alone = ["run", "--config-dir", "mine", "study=width", "cluster=local", "tracker=none"]
    for name in sorted(resumed)[:2]:
        width, lr, seed = name.removeprefix("reinforce-width").replace("lr", "").replace("s", "").split("-")
        words = [f"program.width={width}", f"program.lr={lr}", f"seed={seed}"]
        code, out = rlvr(*alone, *words, home=tmp_path / "undisturbed", cwd=tmp_path)
        assert code == 0, out
        (other,) = (path for run, path in runs(tmp_path / "undisturbed").items() if path.name == finished[name].name)
        assert recorded(other) == recorded(finished[name])

    for command, message in (
        ("evaluate", "was trained by another program"),
        ("export", "is the state of another program"),
    ):
        code, out = rlvr(command, name, *(["policy"] if command == "export" else []), home=home, cwd=tmp_path)
        assert code == 2
        assert message in out

    code, out = rlvr("report", "--study", "width", "--json", home=home, cwd=tmp_path)
    assert code == 0, out
    (study,) = json.loads(out[out.index("[") :])
    (verdict,) = (verdict for verdict in study["verdicts"] if verdict["says"].startswith("a wide network"))
    assert verdict["outcome"] == "holds"
    (difference,) = verdict["differences"]
    assert difference["low"] > 0.05
    assert (difference["num_seeds"], difference["num_problems"]) == (3, 355)
