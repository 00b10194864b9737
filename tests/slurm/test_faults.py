"""Faults on a real SLURM, all in one sweep at once: every run ends once, with the numbers of one left in peace."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr.ledger.attempt import ALONE as ALONE_IN_JOB
from rlvr.ledger.attempt import ENDS_AT
from rlvr.ledger.sweeps import Ledger
from sweeps.slurm import ends, submissions
from tests.end_to_end.test_sweep import deterministic
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster import processes
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import INTERRUPTED, SlurmHome, causes, freeze, process_of, wait_for
from tests.tracker.places import Server, stored

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]
ALONE = [*INTERRUPTED, "cluster.memory_gb=9", "cluster.partition=preemptible"]  # on its node
SUPERVISOR, SLURMD, LIMIT, MEMORY = range(4)  # seeds, by what strikes the run
RUN = ["steps=250", "evaluation.every=250", "checkpoint.every=40"]
RANKS = ["rollout.prompts=2", "cluster.ranks=2", "cluster.cpus=2"]


def supervisor_of(run_dir: Path) -> psutil.Process:
    return next(process for process in process_of(run_dir).parents() if "sweeps.slurm.job_of_runs" in process.cmdline())


def slurmd_of(cluster: Settings, node: str) -> int:
    """The daemon alone: jobs on its node live on, and nobody hears of them."""
    commands = {pid: psutil.Process(pid).cmdline() for pid in processes.daemons(cluster.root, "slurmd")}
    return next(pid for pid, command in commands.items() if node in command)


def by_seed(place: SlurmHome) -> dict[int, Path]:
    return {int(name.rpartition("-s")[2]): path for name, path in place.runs().items()}


def said(place: SlurmHome, run_dir: Path) -> str:
    """What the supervisors of the run's job wrote."""
    return ends.task_logs(submissions.history(Ledger(place.home)))[run_dir.name].read_text()


@pytest.fixture(scope="module")
def interrupted(
    cluster: Settings, undisturbed: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmHome, dict[int, dict[str, Any]]]:
    """The home, and how each run was shown when SLURM had nothing left to do. Then the same command, once more.

    Seed 0 loses its supervisor, 1 the slurmd of its node, 2 comes near its time limit, 3 gets too little memory."""
    place = SlurmHome(tmp_path_factory.mktemp("interrupted"), cluster)
    place.launch(*ALONE, f"seed={MEMORY}", "cluster.memory_gb=0.15")
    place.launch(*ALONE, "seed=0,1,2")
    runs = by_seed(place)
    freeze([runs[seed] for seed in (SUPERVISOR, SLURMD, LIMIT)])
    jobs = {int(name.rpartition("-s")[2]): run for name, run in place.status().items()}
    # 60 to 120 s from now on: its warning, 120 s before the end, is due, and SLURM sends it before it ends the job.
    minutes = int(place.client("squeue", "-h", "-j", jobs[LIMIT]["job"], "-o", "%M").split(":")[-2])
    place.client("scontrol", "update", f"JobId={jobs[LIMIT]['job']}", f"TimeLimit={minutes + 2}")
    os.kill(slurmd_of(cluster, jobs[SLURMD]["node"]), signal.SIGKILL)
    supervisor_of(runs[SUPERVISOR]).kill()
    with ThreadPoolExecutor(1) as meanwhile:
        reference = meanwhile.submit(undisturbed)
        wait_for(lambda: causes(runs[LIMIT])[0] == "time_limit")  # SLURM's own warning has woken it
        place.client("scontrol", "update", f"JobId={jobs[LIMIT]['job']}", "TimeLimit=10")
        wait_for(lambda: "again in" in said(place, runs[SLURMD]))  # started elsewhere, where it found the run held
        reference.result()
    process_of(runs[SLURMD]).resume()
    wait_for(lambda: not place.queue())
    code, out = place.python("-m", "sweeps", "status", "--all", "--json")
    assert code == 0, out
    shown = {int(run["name"].rpartition("-s")[2]): run for sweep in json.loads(out) for run in sweep["runs"]}
    local.start_node(cluster, jobs[SLURMD]["node"])
    again = place.launch(*ALONE, "seed=0,1,2,3")
    assert "1 runs submitted to SLURM" in again
    assert "3 finished before" in again
    wait_for(lambda: not place.queue())
    return place, shown


@pytest.mark.parametrize(
    ("seed", "state", "cause", "ends"),
    [
        pytest.param(SUPERVISOR, "finished", "ok", ["preempted", "ok"], id="kill -9 of the supervisor"),
        pytest.param(SLURMD, "finished", "ok", ["ok"], id="kill -9 of slurmd alone"),
        pytest.param(LIMIT, "finished", "ok", ["time_limit", "ok"], id="time limit"),
        pytest.param(MEMORY, "failed", "host_oom", ["ok"], id="out of memory before it began"),
    ],
)
def test_an_interrupted_run_is_shown_for_what_it_is_and_ends_bit_for_bit_the_same(
    interrupted: tuple[SlurmHome, dict[int, dict[str, Any]]],
    undisturbed: Callable[[], Path],
    seed: int,
    state: str,
    cause: str,
    ends: list[str],
) -> None:
    place, shown = interrupted
    assert (shown[seed]["state"], shown[seed]["cause"]) == (state, cause)
    run_dir = by_seed(place)[seed]
    assert (causes(run_dir), deterministic(run_dir)) == (ends, deterministic(undisturbed() / run_dir.name))


def test_a_rank_killed_conf_edited_while_the_job_waits_and_mlflow_down_until_the_end_lose_nothing(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs in the checkout that submitted it: here a copy, whose conf/ is spoilt before the job starts."""
    reference = SlurmHome(tmp_path / "reference", cluster)  # from the whole checkout
    reference.launch(*RUN, *RANKS, "cluster=local", "tracker=none")
    checkout, server = tmp_path / "checkout", Server(tmp_path)
    for name in ("conf", "rlvr", "sweeps", "slurm", "analysis", "hydra_plugins"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    monkeypatch.chdir(checkout)
    place = SlurmHome(tmp_path / "home", cluster)
    place.client("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        place.launch(*RUN, *RANKS, f"tracker.uri={server.uri}")
        (checkout / "conf/run.yaml").write_text("defaults: [nothing_of_this_kind]\n")
        shutil.rmtree(checkout / "conf/loss")
    finally:
        place.client("scontrol", "update", "PartitionName=main", "State=UP")
    (run_dir,) = place.runs().values()
    freeze([run_dir])
    # Ten minutes (cluster.time_min) since SLURM started the job: the run knows which step may be its last.
    environment = process_of(run_dir).environ()
    assert 0 < float(environment[ENDS_AT]) - time.time() <= 600
    assert environment[ALONE_IN_JOB] == "1"
    launcher = process_of(run_dir).parent()
    assert launcher is not None
    (second,) = (process for process in launcher.children() if process.environ().get("RANK") == "1")
    second.kill()
    process_of(run_dir).resume()
    wait_for(lambda: not place.queue())
    assert causes(run_dir) == ["error", "ok"]
    assert deterministic(run_dir) == deterministic(reference.home / "runs" / run_dir.name)
    (report,) = place.home.glob("runs/sweeps/*/report.out")
    assert "`python -m sweeps sync` ships the rest" in report.read_text()
    assert (place.home / "reports/main/index.html").exists()
    server.start()
    try:
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        code, out = place.python("-m", "sweeps", "sync")
        assert code == 0, out
    finally:
        server.kill()
    rows = stored(server.database)[run_dir.name]
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    finite = [(key, line["step"]) for line in lines for key, value in line["metrics"].items() if value not in ODD]
    assert Counter((key, step) for key, step, *_ in rows) == Counter(finite)


ODD = ("nan", "inf", "-inf")  # not sent: MLflow cannot hold them


SHORT = ["steps=2", "evaluation.every=2", "tracker=none", "cluster.report=false", "cluster.memory_gb=1"]
BROKEN = {
    "a module is missing": 'cluster.setup=["[ $SLURMD_NODENAME != n1 ]"]',
    "python is missing": 'cluster.setup=["[ $SLURMD_NODENAME != n1 ] || srun() { /gone/bin/python; }"]',
}


@pytest.mark.parametrize("setup", BROKEN.values(), ids=BROKEN.keys())
def test_a_node_where_no_run_can_begin_eats_no_sweep(cluster: Settings, tmp_path: Path, setup: str) -> None:
    place = SlurmHome(tmp_path, cluster)
    place.launch(*SHORT, "seed=0,1,2,3,4,5", setup)
    wait_for(lambda: not place.queue())
    assert {run["state"] for run in place.status().values()} == {"finished"}
    (bad,) = tmp_path.glob("runs/submissions/*/bad_nodes")
    assert set(bad.read_text().split()) == {"n1"}
    assert "n1" not in {run["node"] for run in place.status().values()}


def test_a_setup_that_fails_everywhere_stops_the_sweep_and_says_why(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    place.launch(*SHORT, "seed=0,1,2,3,4,5,6,7,8,9,10,11", 'cluster.setup=["module load gone"]', "cluster.cpus=4")
    wait_for(lambda: not place.queue())
    reasons = {run["reason"] for run in place.status().values() if run["state"] == "failed"}
    (bad,) = tmp_path.glob("runs/submissions/*/bad_nodes")
    assert len(set(bad.read_text().split())) >= 3, bad.read_text()  # more if they began at once
    assert any("failed: module load gone; so it did on each of n" in reason for reason in reasons), reasons
