"""The whole arrow, really run: command → sweep → training → spool → MLflow → tables; killed, repeated, resumed."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes import runs
from tests.support.words import newest

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]

# The smallest world that still has everything: dynamic sampling, several updates, two evaluations, checkpoints.
SMALL = [
    *("task.size=5", "task.test_problems=8", "model.steps=150", "model.batch=32", "steps=6", "rollout.prompts=4"),
    *("rollout.samples=4", "rollout.dynamic_sampling=none", "evaluation.every=3", "evaluation.samples=4"),
    *("evaluation.k=[1,4]", "checkpoint.every=2", "cluster=local"),
]
GRID = ["-m", "loss=lad", "divergence=js,hd", "eta=0.5,1"]


def python(*arguments: str, home: Path, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "RLVR_HOME": str(home), "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def sweep(*overrides: str, home: Path) -> tuple[int, str]:
    process = python("-m", "rlvr.run", *newest([*GRID, *SMALL, *overrides]), home=home)
    out, _ = process.communicate(timeout=500)
    return process.returncode, out


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


def test_every_point_of_the_grid_is_trained_and_named_from_one_base_policy_built_once(undisturbed: Path) -> None:
    assert set(runs(undisturbed)) == {f"lad-{d}-eta{e}-s0" for d in ("js", "hd") for e in ("0.5", "1")}
    for run_dir in runs(undisturbed).values():
        steps = deterministic(run_dir)
        assert list(steps) == list(range(7))  # the base policy, then six steps
        assert {"evaluation/maze_5x5/avg_at_4", "evaluation/maze_5x5/pass_at_4"} <= set(steps[0]) & set(steps[6])
        assert json.loads((run_dir / "attempts/1/exit.json").read_text())["cause"] == "ok"
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


def beside(undisturbed: Path, home: Path) -> Path:
    """A home with the same base policy."""
    (home / "runs").mkdir(parents=True)
    (home / "runs" / "stages").symlink_to(undisturbed / "runs" / "stages")
    return home


@pytest.mark.smoke
def test_killed_in_the_middle_and_repeated_it_ends_the_same_bit_for_bit(undisturbed: Path, tmp_path: Path) -> None:
    process = python("-m", "rlvr.run", *GRID, *SMALL, "tracker=none", home=tmp_path, start_new_session=True)
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
    code, out = sweep("tracker=none", "cluster.workers=1", home=tmp_path)
    assert code == 0, out
    for name, run_dir in runs(undisturbed).items():
        assert deterministic(runs(tmp_path)[name]) == deterministic(run_dir), name


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
    assert "exists already and is not empty" in out


@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.smoke), 1])
def test_two_ranks_train_the_same_run_as_one(undisturbed: Path, tmp_path: Path, ahead: int) -> None:
    """Real gloo processes; float32 sums differ in their order only (relative 1e-4 after 3 steps).

    With mixed groups alone: in a mini-batch whose advantages are all 0 the gradient is rounding, and Adam scales it up.
    """
    mixed = ["rollout.dynamic_sampling=refill", f"rollout.ahead={ahead}", "steps=3", "tracker=none"]
    final: list[dict[str, float]] = []
    for ranks in (1, 2):
        home = beside(undisturbed, tmp_path / str(ranks))
        process = python("-m", "rlvr.run", *newest([*SMALL, *mixed]), f"cluster.ranks={ranks}", home=home)
        out, _ = process.communicate(timeout=500)
        assert process.returncode == 0, out
        (run_dir,) = runs(home).values()
        final.append(deterministic(run_dir)[3])
    assert final[1] == pytest.approx(final[0], rel=1e-4, abs=1e-6)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and installed by pip away from the checkout."""
    root = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(root), str(Path(__file__).parents[2])]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = root.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--target", str(root / "site"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    return root / "site"


def test_the_wheel_holds_every_file_once(site: Path) -> None:
    files = [p.relative_to(site) for p in site.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert {p.suffix for p in files if p.is_relative_to("rlvr/conf")} == {".yaml"}
    studies = {p.name for p in (Path(__file__).parents[2] / "sweeps").glob("*.yaml")}
    assert {p.name for p in files if p.is_relative_to("rlvr/conf/study")} == studies
    assert not [p for p in files if p.is_relative_to("sweeps") and p.suffix != ".py" and p.name != "py.typed"]
    assert {p.parts[0] for p in files if p.name == "py.typed"} == {"rlvr", "sweeps", "slurm", "analysis"}
    assert Path("hydra_plugins/rlvr.py") in files
    assert Path("hydra_plugins/__init__.py") not in files


@pytest.mark.smoke
def test_an_installed_wheel_runs_from_any_directory(site: Path, tmp_path: Path) -> None:
    """By its command, in a directory where files of its names lie: results go to where you are."""
    for name in ("slurm.py", "analysis.py", "sweeps.py"):
        (tmp_path / name).write_text("raise RuntimeError('somebody else')\n")
    env = {k: v for k, v in os.environ.items() if k != "RLVR_HOME"} | {"PYTHONPATH": str(site), "COLUMNS": "160"}

    def rlvr(*words: str) -> str:
        command = [sys.executable, str(site / "bin/rlvr"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert rlvr("--version").startswith("rlvr ")
    assert "rlvr.loss.lad.lad" in rlvr("run", "--cfg", "job", "study=eta")
    shown = rlvr("run", "study=eta", "cluster=local", "--dry-run")
    assert re.search(r"^eta [0-9a-f]{8}: 50 runs, 0 finished, 50 to do", shown, re.MULTILINE)
    rlvr("run", *newest([*SMALL, "steps=1", "loss=grpo"]))
    (run_json,) = tmp_path.glob("runs/*/run.json")
    assert json.loads(run_json.read_text())["git_sha"] == ""  # its code is no checkout's
    assert "1 finished" in rlvr("status")
    rlvr("report")
    assert (tmp_path / "reports/main/index.html").exists()
    rlvr("weights", "loss=rloo", "rollout.samples=4")
    assert (tmp_path / "reports/weights/weights.png").exists()
