"""The whole arrow, really run: command → sweep → training → spool → MLflow → tables; killed, repeated, resumed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]

# The smallest world that still has everything: dynamic sampling, several updates, two evaluations, checkpoints.
SMALL = [
    "task.size=5",
    "task.test_problems=8",
    "model.steps=150",
    "model.batch=32",
    "steps=6",
    "rollout.prompts=4",
    "rollout.samples=4",
    "rollout.dynamic_sampling=none",
    "evaluation.every=3",
    "evaluation.samples=4",
    "evaluation.k=[1,4]",
    "checkpoint.every=2",
    "cluster=local",
]
GRID = ["-m", "loss=lad", "divergence=js,hd", "eta=0.5,1"]


def python(*arguments: str, home: Path, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "RLVR_HOME": str(home), "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def sweep(*overrides: str, home: Path) -> tuple[int, str]:
    process = python("-m", "rlvr.run", *GRID, *SMALL, *overrides, home=home)
    out, _ = process.communicate(timeout=500)
    return process.returncode, out


def runs(home: Path) -> dict[str, Path]:
    return {json.loads(p.read_text())["name"]: p.parent for p in sorted((home / "runs").glob("*/run.json"))}


def deterministic(run_dir: Path) -> dict[int, dict[str, float]]:
    """Every metric that is not a time, by step; fails if a step is on record twice."""
    found: dict[int, dict[str, float]] = {}
    for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        assert line["step"] not in found
        found[line["step"]] = {k: v for k, v in line["metrics"].items() if not k.startswith(("time/", "throughput/"))}
    return found


def attempts(run_dir: Path) -> int:
    return len(list((run_dir / "attempts").iterdir()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("undisturbed")
    code, out = sweep(home=home)
    assert code == 0, out
    return home


def test_every_point_of_the_grid_is_trained_and_named(undisturbed: Path) -> None:
    assert set(runs(undisturbed)) == {f"lad-{d}-eta{e}-s0" for d in ("js", "hd") for e in ("0.5", "1")}
    for run_dir in runs(undisturbed).values():
        steps = deterministic(run_dir)
        assert list(steps) == list(range(7))  # the base policy, then six steps
        assert {"evaluation/maze_5x5/avg_at_4", "evaluation/maze_5x5/pass_at_4"} <= set(steps[0]) & set(steps[6])
        assert json.loads((run_dir / "attempts/1/exit.json").read_text())["cause"] == "ok"


def test_arms_start_from_one_base_policy_built_once(undisturbed: Path) -> None:
    assert len(list((undisturbed / "runs/stages").glob("*/stage.json"))) == 1
    first = [deterministic(d)[0] for d in runs(undisturbed).values()]
    assert all(each == first[0] for each in first)  # the same policy, problems and noise


def test_the_same_command_again_trains_nothing(undisturbed: Path) -> None:
    began = time.time()
    code, out = sweep(home=undisturbed)
    assert code == 0, out
    assert "4 of 4 runs finished (4 before)" in out
    for run_dir in runs(undisturbed).values():
        assert attempts(run_dir) == 1
        assert (run_dir / "metrics.jsonl").stat().st_mtime < began


def test_mlflow_holds_every_metric_once(undisturbed: Path) -> None:
    with sqlite3.connect(undisturbed / "mlflow.db") as store:
        rows = store.execute(
            "select t.value, m.key, m.step, m.value from metrics m join tags t on t.run_uuid = m.run_uuid "
            "where t.key = 'rlvr.run_id'"
        ).fetchall()
    stored = {(run, key, step): value for run, key, step, value in rows}
    assert len(stored) == len(rows)
    expected = {
        (run_dir.name, key, line["step"]): value
        for run_dir in runs(undisturbed).values()
        for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        for key, value in line["metrics"].items()
        if isinstance(value, float)
    }
    assert stored == expected


def test_killed_in_the_middle_and_repeated_it_ends_the_same_bit_for_bit(undisturbed: Path, tmp_path: Path) -> None:
    process = python("-m", "rlvr.run", *GRID, *SMALL, home=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 300
    while not any(
        len(deterministic(d)) in (3, 4, 5, 6) for d in runs(tmp_path).values() if (d / "metrics.jsonl").exists()
    ):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert any(
        attempts(d) == 1 and not (d / "attempts/1/exit.json").exists()
        for d in runs(tmp_path).values()
        if (d / "attempts").exists()
    )
    code, out = sweep(home=tmp_path)
    assert code == 0, out
    for name, run_dir in runs(undisturbed).items():
        assert deterministic(runs(tmp_path)[name]) == deterministic(run_dir), name


def test_a_finer_grid_trains_only_what_is_missing(undisturbed: Path) -> None:
    code, out = sweep("eta=0.5,1,2", home=undisturbed)
    assert code == 0, out
    assert "6 of 6 runs finished (4 before)" in out
    assert all(attempts(d) == 1 for d in runs(undisturbed).values())


def test_tables_and_figures_are_built_from_it(undisturbed: Path) -> None:
    process = python("-m", "analysis", home=undisturbed)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    report = undisturbed / "reports/main"
    assert (report / "index.html").exists()
    assert {p.stem for p in (report / "tables").glob("*.md")} >= {"eta", "divergence"}
    assert "maze_5x5" in (report / "tables/eta.md").read_text()


def test_a_checkpoint_becomes_a_model_that_transformers_loads(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = next(iter(runs(undisturbed).values()))
    command = ["-m", "rlvr.export", str(run_dir), str(tmp_path / "policy"), "--dtype", "bfloat16"]
    process = python(*command, home=undisturbed)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    assert json.loads((tmp_path / "policy/config.json").read_text())["dtype"] == "bfloat16"
    assert {p.name for p in (tmp_path / "policy").iterdir()} >= {"model.safetensors", "tokenizer.json"}
    again = python(*command, home=undisturbed)
    out, _ = again.communicate(timeout=100)
    assert again.returncode == 2
    assert "is there already and holds something" in out


def test_one_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    """A learning rate that no policy survives: the run fails by name, its neighbour finishes, the exit code says so."""
    process = python("-m", "rlvr.run", "-m", "lr=1e-4,1e18", *SMALL, home=tmp_path)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 1, out
    causes = {n: json.loads((d / "attempts/1/exit.json").read_text())["cause"] for n, d in runs(tmp_path).items()}
    assert sorted(causes.values()) == ["diverged", "ok"], out
    failed = next(d for n, d in runs(tmp_path).items() if causes[n] == "diverged")
    assert str(failed / "attempts/1/log.txt") in out
    status = python("-m", "sweeps", "status", home=tmp_path)
    assert "1 diverged" in status.communicate(timeout=60)[0]


@pytest.mark.parametrize("ahead", [0, 1])
def test_two_ranks_train_the_same_run_as_one(tmp_path: Path, ahead: int) -> None:
    """Real gloo processes through torchrun; float32 sums differ in their order only (relative 1e-4 after 3 steps).

    With mixed groups alone: in a mini-batch whose advantages are all 0 the gradient is rounding, and Adam scales it up.
    """
    mixed = ["rollout.dynamic_sampling=refill", f"rollout.ahead={ahead}"]
    final: list[dict[str, float]] = []
    for ranks in (1, 2):
        process = python(
            "-m", "rlvr.run", *SMALL, "steps=3", *mixed, f"cluster.ranks={ranks}", home=tmp_path / str(ranks)
        )
        out, _ = process.communicate(timeout=500)
        assert process.returncode == 0, out
        (run_dir,) = runs(tmp_path / str(ranks)).values()
        final.append(deterministic(run_dir)[3])
    assert final[1] == pytest.approx(final[0], rel=1e-4, abs=1e-6)


def test_an_installed_wheel_runs_from_any_directory(tmp_path: Path) -> None:
    """Built, unpacked away from the checkout and started somewhere else: results go to where you are."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(Path(__file__).parents[2])]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    env = {k: v for k, v in os.environ.items() if k != "RLVR_HOME"} | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "rlvr.run", *SMALL, "steps=1", "loss=grpo"]
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [p.parent.parent for p in (work / "runs").glob("*/run.json")] == [work / "runs"]
    show = subprocess.run(
        [*command[:3], "--cfg", "job", "study=eta"], cwd=work, env=env, capture_output=True, text=True, check=False
    )
    assert "rlvr.loss.lad.lad" in show.stdout, show.stderr
