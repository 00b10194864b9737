"""The user's command on a real SLURM: every run finishes exactly once, whatever happens to its job."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.test_sweep import deterministic
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster import processes
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, INTERRUPTED, SlurmHome, causes, freeze, process_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

GRID = ["divergence=js,hd,tv", "eta=0.5,1", "steps=3", "evaluation.every=3", "cluster.max_parallel=4"]
ON_SLURM = ["seed=0,1,2,3,4", "cluster.memory_gb=9", "cluster.partition=preemptible"]  # one job per node


def kill_node(cluster: Settings, name: str) -> None:
    """What a power cut leaves: nobody who could tell the controller that the job is over."""

    def told(pid: int, file: str) -> list[str]:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")

    jobs = [pid for pid in processes.jobs(cluster.root) if f"SLURMD_NODENAME={name}" in told(pid, "environ")]
    parents = {int(told(pid, "stat")[0].rpartition(")")[2].split()[1]) for pid in jobs}
    steps = parents & set(processes.daemons(cluster.root, "slurmstepd"))
    nodes = [pid for pid in processes.daemons(cluster.root, "slurmd") if name in told(pid, "cmdline")]
    assert steps
    assert nodes
    for pid in [*nodes, *steps, *jobs]:
        os.kill(pid, signal.SIGKILL)


def test_six_jobs_are_six_runs_finished_once(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    place.client("scontrol", "update", "PartitionName=main", "State=DOWN")  # nothing starts before it was looked at
    try:
        assert "6 runs submitted to SLURM" in place.launch(*GRID)
        for path in tmp_path.glob("runs/submissions/*/job.json"):
            path.unlink()  # what the death of the submitter right after sbatch leaves
        again = place.launch(*GRID)
        assert "0 runs submitted to SLURM" in again
        assert sum(int(n) for n in re.findall(r"(\d+) (?:have a job already|finished before)", again)) == 6
        shown = place.status()
        assert {run["state"] for run in shown.values()} <= {"queued", "running", "finished"}
        assert any(run["phase"].startswith("PENDING") for run in shown.values())
    finally:
        place.client("scontrol", "update", "PartitionName=main", "State=UP")
    wait_for(lambda: not place.queue())
    assert len(place.runs()) == 6
    for run_dir in place.runs().values():
        assert causes(run_dir) == ["ok"]
        assert list(deterministic(run_dir)) == [0, 1, 2, 3]
    submissions = [json.loads(path.read_text()) for path in tmp_path.glob("runs/submissions/*/submission.json")]
    assert sorted(len(submission["runs"]) for submission in submissions) == [0, 6]  # the report's job, and one array
    scripts = [*tmp_path.glob("runs/submissions/*/*.sbatch"), *tmp_path.glob("runs/sweeps/*/*.sbatch")]
    assert sorted(path.name for path in scripts) == ["array.sbatch", "report.sbatch"]
    assert {oct(path.stat().st_mode & 0o777) for path in scripts} == {"0o600"}  # they hold cluster.setup
    assert len(list(tmp_path.glob("runs/submissions/*/job.json"))) >= 1  # the array's, written by its first task
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        shipped = store.execute("select count(distinct value) from tags where key = 'rlvr.run_id'").fetchone()
    assert shipped == (6,)
    with (tmp_path / "reports/main/tables/bandit.csv").open() as table:  # by the job that waited for all twelve
        arms = {(row["block"], row["row"]) for row in csv.DictReader(table) if row["state"] == "ok"}
    assert len(arms) == 6
    assert (tmp_path / "reports/main/index.html").exists()
    assert (
        "\x1b" not in next(tmp_path.glob("runs/sweeps/*/report.out")).read_text()
    )  # plain text, no orders to a terminal
    assert "0 runs submitted to SLURM, 6 finished before" in place.launch(*GRID)


@pytest.fixture(scope="module")
def interrupted(cluster: Settings, tmp_path_factory: pytest.TempPathFactory) -> SlurmHome:
    """Five runs, a node each: preempted, killed, cancelled, warned of the time limit; the last loses its node."""
    place = SlurmHome(tmp_path_factory.mktemp("interrupted"), cluster)
    place.launch(*INTERRUPTED, *ON_SLURM)
    runs = list(place.runs().values())
    job = place.client("squeue", "-h", "-o", "%F").split()[0]
    freeze(runs)
    node, lost = (place.client("squeue", "-h", "-j", f"{job}_{k}", "-o", "%N").strip() for k in (0, 4))
    kill_node(cluster, lost)
    place.client("sbatch", "-p", "urgent", "-w", node, "--exclusive", "--output=/dev/null", "--wrap", "sleep 2")
    process_of(runs[1]).kill()
    code, out = place.python("-m", "sweeps", "cancel", runs[2].name)
    assert code == 0, out
    assert "1 of 1 runs" in out
    place.client("scancel", "-s", "USR2", f"{job}_3")
    process_of(runs[3]).resume()
    wait_for(lambda: f"{job}_2" not in place.queue())
    before = place.status()
    assert "1 runs submitted to SLURM" in place.launch(*INTERRUPTED, *ON_SLURM)  # the cancelled one, and it alone
    wait_for(lambda: not place.queue())
    local.start_node(cluster, lost)
    (name,) = (name for name, run_dir in place.runs().items() if run_dir == runs[2])
    (place.home / "cancelled.json").write_text(json.dumps(before[name]))
    return place


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("seed", "ends"),
    [
        pytest.param(0, ["preempted", "ok"], id="preempted by a higher partition"),
        pytest.param(1, ["error", "ok"], id="kill -9 of the job's process"),
        pytest.param(2, ["preempted", "ok"], id="cancelled and submitted again"),
        pytest.param(3, ["time_limit", "ok"], id="warned that its time is nearly up"),
        pytest.param(4, ["node", "ok"], id="kill -9 of everything on its node"),
    ],
)
def test_an_interrupted_run_goes_on_and_ends_bit_for_bit_the_same(
    interrupted: SlurmHome, undisturbed: Callable[[], Path], seed: int, ends: list[str]
) -> None:
    name, run_dir = list(interrupted.runs().items())[seed]
    assert name.endswith(f"-s{seed}")
    assert causes(run_dir) == ends
    assert deterministic(run_dir) == deterministic(undisturbed() / run_dir.name)


def test_a_cancelled_run_is_shown_as_resumable_and_a_killed_process_is_named_on_the_ledger(
    interrupted: SlurmHome,
) -> None:
    assert json.loads((interrupted.home / "cancelled.json").read_text())["state"] == "preempted"
    run_dir = list(interrupted.runs().values())[1]
    assert "signal 9 (SIGKILL" in json.loads((run_dir / "attempts/1/exit.json").read_text())["message"]


def test_a_controller_killed_and_started_again_loses_and_doubles_nothing(
    cluster: Settings, undisturbed: Callable[[], Path], tmp_path: Path
) -> None:
    place = SlurmHome(tmp_path, cluster)
    two = [*INTERRUPTED, "seed=0,1"]
    place.launch(*two)
    runs = place.runs()
    freeze(list(runs.values()))
    for pid in processes.daemons(cluster.root, "slurmctld"):
        os.kill(pid, signal.SIGKILL)
    for run_dir in runs.values():
        process_of(run_dir).resume()
    local.start_controller(cluster)
    wait_for(lambda: local.is_ready(cluster))
    wait_for(lambda: not place.queue())
    for run_dir in runs.values():
        assert causes(run_dir) == ["ok"]
        assert deterministic(run_dir) == deterministic(undisturbed() / run_dir.name)
    assert "0 runs submitted to SLURM, 2 finished before" in place.launch(*two)


def test_a_failed_training_is_failed_in_slurm_too(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    failing = ["lr=1e38", "steps=5", "divergence=js", "trainer.clip_norm=0", "evaluation.every=5"]
    failing += ["tracker=none", "cluster.report=false"]  # whose job would be a second one
    code, out = place.python("-m", "rlvr.run", *BANDIT, *failing, "cluster.account=nobody")
    assert code == 2
    assert "SLURM refused the jobs: " in out  # that submission is on the ledger, and stands for no job
    assert "cluster.account=nobody" in out
    code, out = place.python("-m", "rlvr.run", *BANDIT, *failing, "cluster.wait=true")
    assert code == 1, out
    (run_dir,) = place.runs().values()
    end = json.loads((run_dir / "attempts/1/exit.json").read_text())
    assert f"0 of 1 runs finished, 1 {({1: 'failed', 4: 'diverged'})[end['code']]}" in out
    job = json.loads(next(tmp_path.glob("runs/submissions/*/job.json")).read_text())["job"]
    accounting = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode")
    wait_for(lambda: place.client(*accounting).strip() == f"FAILED|{end['code']}:0")
