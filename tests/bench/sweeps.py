"""A user's waiting times with sweeps: submitting 1,000 runs to SLURM, `sweeps status`, and a run's first step.

Measured on a real SLURM cluster of its own, as that of `make cluster-up`; if there can be none, and with --quick, only
`sweeps status` is measured.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.sweeps import Ledger
from tests.bench.row import Row, row, timed
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster.packages import obstacle
from tests.slurm.local_cluster.settings import Settings
from tests.support.words import BANDIT

RUNS, LIMIT_S, REPEATS = 1000, 1.0, 5
WORDS = ["-m", *BANDIT, "loss=reinforce", "steps=3", "evaluation.every=3", "tracker=none", "cluster.report=false"]


def rows(*, quick: bool) -> Iterator[Row]:
    """Milliseconds per submitted run, seconds of `sweeps status`, seconds to the first step."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if quick or obstacle():
            runs = [{"run_id": f"{number:012x}", "name": f"lad-s{number}"} for number in range(50 if quick else RUNS)]
            for run in runs:
                Ledger(home / "many").create_run(run["run_id"], "{}", {**run, "group_id": "g"})
            Ledger(home / "many").record_sweep("s", {"study": "main"}, runs)
            yield _status(home / "many", {})
            return
        with _cluster() as cluster:
            environment = {"SLURM_CONF": str(cluster.conf)}
            yield from _submission(home / "many", cluster, environment)
            yield _status(home / "many", environment)
            local.client(cluster, "scancel", "--me")
            local.client(cluster, "scontrol", "update", "PartitionName=main", "State=UP")
            yield _first_step(home, environment)


def _submission(home: Path, cluster: Settings, environment: dict[str, str]) -> Iterator[Row]:
    """The time of one job array, from its record to its job number; and of the whole command, which plans, checks,
    records and submits."""
    local.client(cluster, "scontrol", "update", "PartitionName=main", "State=DOWN")
    launch_s = timed(lambda: _run(home, environment, "-m", "rlvr.run", *WORDS, f"seed=range({RUNS})"))()
    (script,) = home.glob("runs/submissions/*/array.sbatch")
    record, number = (json.loads(script.with_name(f"{name}.json").read_text()) for name in ("submission", "job"))
    array_s = number["time"] - record["created"]
    one = script.with_name("one.sbatch")
    one.write_text("".join(line for line in script.read_text().splitlines(keepends=True) if "--array" not in line))
    sbatch_s = min(timed(lambda: local.client(cluster, "sbatch", str(one)))() for _ in range(REPEATS))
    name, array_ms = f"submission of one of {RUNS:,} jobs", 1e3 * array_s / RUNS
    yield row(name, array_ms, "ms", "sbatch for each", 1e3 * sbatch_s, smaller=True, target=10.0)
    yield row(f"launch of one of {RUNS:,} runs", 1e3 * launch_s / RUNS, "ms")


def _status(home: Path, environment: dict[str, str]) -> Row:
    """Seconds of the command as typed. Every run has an attempt; with SLURM, also a task in the queue."""
    run_ids = Ledger(home).runs()
    for run_id in run_ids:
        with Attempt.open(Ledger(home).run_dir(run_id)) as attempt:
            attempt.heartbeat(1, 10, "train", accuracy=0.5)
            attempt.close(Cause.PREEMPTED)
    status_s = min(timed(lambda: _run(home, environment, "-m", "sweeps", "status"))() for _ in range(REPEATS))
    name = f"sweeps status, {len(run_ids):,} runs"
    return row(name, status_s, "s", "limit", LIMIT_S, smaller=True, target=1.0)


def _first_step(home: Path, environment: dict[str, str]) -> Row:
    """Seconds from before sbatch to the end of the first training step; without SLURM, from the launch."""
    seconds: dict[str, float] = {}
    for backend, file in (("slurm", "runs/submissions/*/submission.json"), ("local", "runs/sweeps/*/sweep.json")):
        place = home / backend
        _run(place, environment, "-m", "rlvr.run", *WORDS, f"cluster={backend}")
        (began,) = (json.loads(path.read_text())["created"] for path in place.glob(file))
        while not (first := _first(place)):
            time.sleep(0.1)
        seconds[backend] = first - began
    name, peer = "sbatch to the first training step", "the same run on this machine"
    return row(name, seconds["slurm"], "s", peer, seconds["local"], smaller=True)


def _first(home: Path) -> float:
    """Unix time at which the first training step of the only run was recorded; 0: not yet."""
    lines = [json.loads(line) for path in home.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()]
    return next((line["time"] for line in lines if line["step"] == 1), 0.0)


def _run(home: Path, environment: dict[str, str], *arguments: str) -> None:
    full = {**os.environ, **environment, "RLVR_HOME": str(home)}
    subprocess.run([sys.executable, *arguments], env=full, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _cluster() -> Iterator[Settings]:
    root = Path(f"/tmp/rlvr-bench-{os.getpid()}")
    try:
        yield local.up(root)
    finally:
        local.down(root)
        shutil.rmtree(root, ignore_errors=True)
