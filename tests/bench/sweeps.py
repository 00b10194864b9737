"""What a sweep costs its user: handing 1,000 runs to SLURM, looking at them, and the way to a run's first step.

On the real SLURM of `make cluster-up`, one of its own; where there can be none, and with --quick, only the look at the
ledger is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.sweeps import Ledger
from slurm.local_cluster import cluster as local
from slurm.local_cluster.packages import obstacle
from slurm.local_cluster.settings import Settings

RUNS, LIMIT_S, REPEATS = 1000, 1.0, 5
BANDIT = [
    "-m",
    "task=bandit",
    "model=table",
    "advantage=reinforce",
    "loss=reinforce",
    "rollout.prompts=1",
    "rollout.dynamic_sampling=none",
    "trainer.updates=1",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "steps=3",
    "evaluation.every=3",
    "tracker=none",
    "cluster.report=false",
]


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Milliseconds per run handed in, seconds of a look, seconds to the first step."""
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


def _submission(home: Path, cluster: Settings, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One array, from its record to its number; and the whole command: planned, checked, recorded, in the queue."""
    local.client(cluster, "scontrol", "update", "PartitionName=main", "State=DOWN")
    whole = _seconds(lambda: _run(home, environment, "-m", "rlvr.run", *BANDIT, f"seed=range({RUNS})"))
    (script,) = home.glob("runs/submissions/*/array.sbatch")
    record, number = (json.loads(script.with_name(f"{name}.json").read_text()) for name in ("submission", "job"))
    ours = number["time"] - record["created"]
    one = script.with_name("one.sbatch")
    one.write_text("".join(x for x in script.read_text().splitlines(keepends=True) if "--array" not in x))
    each = min(_seconds(lambda: local.client(cluster, "sbatch", str(one))) for _ in range(REPEATS))
    yield {
        "name": f"submission of one of {RUNS:,} jobs",
        "value": 1e3 * ours / RUNS,
        "unit": "ms",
        "peer": "sbatch for each",
        "peer_value": 1e3 * each,
        "ratio": each * RUNS / ours,
        "target": 10.0,
    }
    yield {
        "name": f"launch of one of {RUNS:,} runs",
        "value": 1e3 * whole / RUNS,
        "unit": "ms",
        "peer": None,
        "peer_value": None,
        "ratio": None,
        "target": None,
    }


def _status(home: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The command as typed. Every run has an attempt; with SLURM, a task in the queue too."""
    run_ids = Ledger(home).runs()
    for run_id in run_ids:
        with Attempt.open(Ledger(home).run_dir(run_id)) as attempt:
            attempt.heartbeat(1, 10, "train", 0.5)
            attempt.close(Cause.PREEMPTED)
    took = min(_seconds(lambda: _run(home, environment, "-m", "sweeps", "status")) for _ in range(REPEATS))
    return {
        "name": f"sweeps status, {len(run_ids):,} runs",
        "value": took,
        "unit": "s",
        "peer": "limit",
        "peer_value": LIMIT_S,
        "ratio": LIMIT_S / took,
        "target": 1.0,
    }


def _first_step(home: Path, environment: dict[str, str]) -> dict[str, Any]:
    """From the moment before sbatch to the end of the first training step; on this machine from its launch."""
    taken: dict[str, float] = {}
    for backend, file in (("slurm", "runs/submissions/*/submission.json"), ("local", "runs/sweeps/*/sweep.json")):
        place = home / backend
        _run(place, environment, "-m", "rlvr.run", *BANDIT, f"cluster={backend}")
        (began,) = (json.loads(path.read_text())["created"] for path in place.glob(file))
        while not (first := _first(place)):
            time.sleep(0.1)
        taken[backend] = first - began
    return {
        "name": "sbatch to the first training step",
        "value": taken["slurm"],
        "unit": "s",
        "peer": "the same run on this machine",
        "peer_value": taken["local"],
        "ratio": taken["local"] / taken["slurm"],
        "target": None,
    }


def _first(home: Path) -> float:
    """When the first training step of the only run was recorded, unix time; 0: it has not been."""
    lines = [json.loads(line) for path in home.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()]
    return next((line["time"] for line in lines if line["step"] == 1), 0.0)


def _run(home: Path, environment: dict[str, str], *arguments: str) -> None:
    full = {**os.environ, **environment, "RLVR_HOME": str(home)}
    subprocess.run([sys.executable, *arguments], env=full, check=True, stdout=subprocess.DEVNULL)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextlib.contextmanager
def _cluster() -> Iterator[Settings]:
    root = Path(f"/tmp/rlvr-bench-{os.getpid()}")
    try:
        yield local.up(root)
    finally:
        local.down(root)
        shutil.rmtree(root, ignore_errors=True)
