"""`hydra/sweeper=optuna` as a user meets it: real commands, real training, a real ledger."""

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeps import commands
from tests.end_to_end.test_sweep import attempts, deterministic, python
from tests.support import words
from tests.test_run import Command, command

__all__ = ["command"]  # a fixture

METRIC = "evaluation/bandit/expected_reward"
BANDIT = ["-m", "hydra/sweeper=optuna", *words.BANDIT, "loss=lad", "rollout.samples=16", "cluster=local"]
GOAL = [f"hydra.sweeper.metrics={METRIC}", "hydra.sweeper.directions=maximize"]
ONE_BY_ONE = ["hydra/sweeper/sampler=grid", "hydra.sweeper.n_jobs=1", "tracker=none"]
GOOD_FIRST = 1  # seed of an order in which the first of three points comes first
SHORT = [*BANDIT, "lr=tag(log,interval(1e-4,1e-1))", "eta=range(0.5,2.5,0.5)", "steps=6", "evaluation.every=3"]

TWO_METRICS = f"hydra.sweeper.metrics=[{METRIC},reward/mean]"
MISTAKES = [
    (["eta=interval(1,2)"], f"pass hydra.sweeper.metrics={METRIC} hydra.sweeper.directions="),
    (
        ["eta=interval(1,2)", "hydra.sweeper.metrics=evaluation/bandit/reward", GOAL[1]],
        f"no run measures evaluation/bandit/reward. Did you mean {METRIC}? Evaluations measure {METRIC}.",
    ),
    (
        ["eta=interval(1,2)", "hydra.sweeper.metrics=accuracy", GOAL[1]],
        "no run measures accuracy. Did you mean reward/accuracy? Evaluations measure",
    ),
    (
        ["eta=interval(1,2)", TWO_METRICS, "hydra.sweeper.directions=[maximize]"],
        f"hydra.sweeper.directions=[maximize] for {TWO_METRICS}: pass maximize or minimize for each metric.",
    ),
    (
        ["eta=interval(1,2)", GOAL[0], "hydra.sweeper.directions=up"],
        "hydra.sweeper.directions=up must be maximize or minimize.",
    ),
    (["cluster.threads=1,2", *GOAL], "cluster.threads changes no result"),
    (["eta=interval(-2,-1)", *GOAL], "must be greater than 0"),  # no legal point
    (["eta=1,2", *GOAL, "cluster.gpus=99"], "cluster.gpus=99, and this machine has"),
    (
        ["eta=1,2", "when=cluster.threads=2 if eta=2", *GOAL, "hydra/sweeper/sampler=grid", "hydra.sweeper.n_jobs=2"],
        "all runs of a launch on this machine share it. Launch them separately.",
    ),
    (["eta=interval(1,2)", "exclude=eta=1", *GOAL], "exclude shapes a grid, not a search."),
    (
        ["eta=1,2", TWO_METRICS, "hydra/sweeper/pruner=median", "hydra.sweeper.directions=[maximize,maximize]"],
        "a pruner compares one metric: with several pass hydra/sweeper/pruner=none.",
    ),
    (
        ["eta=interval(1,2)", *GOAL, "+hydra.sweeper.sampler.sede=1"],
        "hydra.sweeper.sampler.sede is unknown: hydra.sweeper.sampler takes n_ei_candidates, n_startup_trials, seed.",
    ),
]


@pytest.mark.slow
def test_a_mistake_gets_one_clear_line_and_launches_nothing(command: Command, tmp_path: Path) -> None:
    for arguments, message in MISTAKES:
        code, _, (line,) = command(*BANDIT, "tracker=none", "steps=2", "evaluation.every=2", *arguments, home=tmp_path)
        assert (code, message in line) == (2, True), line
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_search_on_fewer_gpus_than_a_trial_has_is_refused_or_shown_on_paper(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    two = ["rollout.prompts=2", "hydra.sweeper.n_jobs=2", "cluster.ranks=2", "tracker=none"]
    typed = words.newest([*SHORT, *GOAL, *two])
    code, _, errors = command(*typed, home=tmp_path)
    assert (code, len(errors)) == (2, 1), errors
    assert "a run of this launch has 2 processes with a GPU each" in errors[0]
    assert list(tmp_path.iterdir()) == []
    _, shown, _ = command(*typed, "--dry-run", home=tmp_path)
    assert "2 at a time. The first ones:" in shown
    assert "not here: a run of this launch has 2 processes" in shown


def test_a_search_is_no_single_run(command: Command, tmp_path: Path) -> None:
    _, _, errors = command("hydra/sweeper=optuna", *BANDIT[2:], "eta=2", home=tmp_path)
    assert "hydra/sweeper=optuna has no effect on a single run. Search with -m" in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_search_does_not_wait_for_optuna() -> None:
    check = "import rlvr.run, sys; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.slow
def test_a_dry_run_shows_the_first_trials_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    code, out, errors = command(*SHORT, *GOAL, "hydra.sweeper.n_jobs=2", "--dry-run", home=tmp_path)
    assert code == 0, errors
    assert "20 trials of lr=tag(log,interval(1e-4,1e-1))  eta=range(0.5,2.5,0.5), 2 at a time" in out
    assert "2 runs, 0 finished, 2 to do" in out
    assert list(tmp_path.iterdir()) == []


# --- real searches


def real(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.real(pytest.mark.timeout(600)(test)))


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return python("-m", "rlvr.run", *words.newest(arguments), home=home, start_new_session=True)


def search(home: Path, *arguments: str) -> tuple[int, str]:
    process = start(home, *arguments)
    out, _ = process.communicate(timeout=400)
    return process.returncode, out


def trials(home: Path) -> list[dict[str, Any]]:
    (path,) = home.glob("runs/sweeps/*/trials.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


def wait_for(claim: Callable[[], object], process: subprocess.Popen[str], patience_s: float = 200) -> None:
    deadline = time.monotonic() + patience_s
    while not claim():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def last(run_dir: Path) -> float:
    return max(deterministic(run_dir).items())[1][METRIC]


OPTIONS = (*SHORT, *GOAL, "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1", "hydra.sweeper.sampler.seed=1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One search of three trials, one at a time."""
    home = tmp_path_factory.mktemp("search")
    code, out = search(home, *OPTIONS)
    assert code == 0, out
    return home


@real
def test_the_value_of_a_trial_is_the_metric_of_its_run_and_the_command_that_is_told_that_of_the_best(
    home: Path,
) -> None:
    trial_rows = trials(home)
    assert [t["state"] for t in trial_rows] == ["COMPLETE"] * 3
    for trial in trial_rows:
        run_dir = home / "runs" / trial["run_id"]
        assert float(trial[METRIC]) == last(run_dir)
        assert f"eta: {float(trial['eta'])}" in (run_dir / "config.yaml").read_text()
    best = max(trial_rows, key=lambda t: float(t[METRIC]))
    (text,) = [p.read_text() for p in home.glob("runs/sweeps/*/best.md")]
    assert best["run_id"] in text
    assert f"lr={best['lr']}" in text
    (line,) = [line.strip() for line in text.splitlines() if "python -m rlvr.run" in line]
    out, _ = python(*line.replace("'", "").split()[1:], "--dry-run", home=home).communicate(timeout=100)
    assert "1 run, 1 finished" in out


@real
def test_mlflow_says_which_trial_made_a_run(home: Path) -> None:
    with sqlite3.connect(home / "mlflow.db") as store:
        rows = store.execute(
            "select r.value, t.value from tags r join tags t on r.run_uuid = t.run_uuid "
            "where r.key = 'rlvr.run_id' and t.key = 'rlvr.trial'"
        ).fetchall()
    (sweep,) = [p.name for p in (home / "runs/sweeps").iterdir()]
    assert dict(rows) == {t["run_id"]: f"{sweep}/{t['trial']}" for t in trials(home)}


@real
def test_stopped_killed_and_repeated_it_ends_as_if_it_had_not_been(home: Path, tmp_path: Path) -> None:
    process = start(tmp_path, *OPTIONS, "tracker=none")
    wait_for(lambda: list(tmp_path.glob("runs/*/metrics.jsonl")), process)
    assert commands.main(["cancel", "search", "--home", str(tmp_path)]) == 0  # as Ctrl-C does
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 130, out
    assert "the same command continues it" in out
    process = start(tmp_path, *OPTIONS, "tracker=none")
    wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) > 1, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    code, out = search(tmp_path, *OPTIONS, "tracker=none")
    assert code == 0, out
    assert trials(tmp_path) == trials(home)
    for trial in trials(home):
        assert deterministic(tmp_path / "runs" / trial["run_id"]) == deterministic(home / "runs" / trial["run_id"])


@real
def test_a_hopeless_trial_is_pruned_and_its_worker_goes_on_with_the_next(tmp_path: Path) -> None:
    """Learning rates that learn nothing, for so long that they cannot end first, after one that does."""
    pruning = [f"hydra.sweeper.sampler.seed={GOOD_FIRST}", "hydra/sweeper/pruner=median"]
    pruning += ["hydra.sweeper.pruner.n_startup_trials=1", "evaluation.every=20"]
    steps = ["lr=3e-2,1e-9,1e-8", "steps=60", "when=steps=5000 if lr=1e-9,1e-8"]
    code, out = search(tmp_path, *BANDIT, *GOAL, *ONE_BY_ONE, *steps, *pruning)
    assert code == 0, out
    first, *rest = trials(tmp_path)
    assert (first["lr"], first["state"]) == ("0.03", "COMPLETE")
    for trial in rest:
        run_dir = tmp_path / "runs" / trial["run_id"]
        assert trial["state"] == "PRUNED"
        assert json.loads((run_dir / "attempts/1/exit.json").read_text())["cause"] == "pruned"
        assert list(deterministic(run_dir)) == list(range(len(deterministic(run_dir))))
        assert 20 < len(deterministic(run_dir)) < 5000
        assert "MedianPruner, by the value of step 20:" in trial["message"]
    pids = {json.loads(p.read_text())["pid"] for p in tmp_path.glob("runs/*/attempts/1/job.json")}
    assert len(pids) == 1


@real
def test_workers_that_cannot_start_use_up_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports sitecustomize first: here, an installation whose training module is broken."""
    lines = "import os, sys", "if 'rlvr.job' in sys.orig_argv:", "    os.write(2, b'libcuda is gone'); os._exit(1)"
    (broken := tmp_path / "broken").mkdir()
    (broken / "sitecustomize.py").write_text("\n".join(lines))
    options = (*BANDIT, *GOAL, *ONE_BY_ONE, "steps=2", "evaluation.every=2", "lr=1e-3,1e-2")
    with monkeypatch.context() as environment:
        environment.setenv("PYTHONPATH", str(broken))
        code, out = search(tmp_path, *options)
    assert code == 2, out
    assert "no worker could start: libcuda is gone" in out.splitlines()[-1]
    assert "cancelled" not in out
    code, out = search(tmp_path, *options)
    assert code == 0, out
    assert [trial["state"] for trial in trials(tmp_path)] == ["COMPLETE", "COMPLETE"]


@real
def test_a_killed_trial_fails_and_is_tried_again(tmp_path: Path) -> None:
    options = ["lr=1e-3,1e-2", "steps=120", "evaluation.every=120", "checkpoint.every=30", "cluster.retries=0"]
    process = start(tmp_path, *BANDIT, *GOAL, *ONE_BY_ONE, *options, "hydra.sweeper.retries=1")
    wait_for(lambda: list(tmp_path.glob("runs/*/checkpoints/step-00000030")), process)
    (killed,) = tmp_path.glob("runs/*/attempts/1/job.json")
    os.kill(json.loads(killed.read_text())["pid"], signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    trial_rows = trials(tmp_path)
    run_id = killed.parent.parent.parent.name
    ends = [(t["state"], t["cause"]) for t in trial_rows if t["run_id"] == run_id]
    assert ends == [("FAIL", "error"), ("COMPLETE", "")]
    assert sorted(t["state"] for t in trial_rows) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert attempts(tmp_path / "runs" / run_id) == 2
    assert list(deterministic(tmp_path / "runs" / run_id)) == list(range(121))
