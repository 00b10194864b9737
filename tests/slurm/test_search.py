"""A search whose trials are jobs of a real SLURM: one is cancelled, told FAIL and tried again; one is pruned."""

import json
from pathlib import Path

import pytest

from rlvr.ledger.sweeps import Ledger
from tests.end_to_end.test_sweep import deterministic
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, SlurmHome, causes, steps_done, wait_for
from tests.sweeps.search.test_search import GOAL, ONE_BY_ONE, trials

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]

GRID = [*BANDIT, *GOAL, "hydra/sweeper=optuna", *ONE_BY_ONE, "checkpoint.every=20"]


def test_a_search_submits_follows_prunes_and_tries_again(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    options = [
        *(*GRID, "hydra.sweeper.sampler.seed=1", "hydra/sweeper/pruner=median", "hydra.sweeper.retries=1"),
        *("hydra.sweeper.pruner.n_startup_trials=1", "lr=3e-2,1e-9", "steps=600", "when=steps=5000 if lr=1e-9"),
        *("evaluation.every=20", "cluster.requeues=0"),
    ]
    with (out := tmp_path / "out.txt").open("w") as file:
        process = place.start("-m", "rlvr.run", *options, output=file)
    try:
        wait_for(lambda: process.poll() is not None or any(steps_done(run) >= 20 for run in place.runs().values()))
        place.client("scancel", *place.queue())
        process.wait(300)
    finally:
        process.kill()
    assert process.returncode == 0, out.read_text()
    trial_rows = trials(place.home)
    assert [(t["lr"], t["state"]) for t in trial_rows] == [("0.03", "FAIL"), ("0.03", "COMPLETE"), ("1e-09", "PRUNED")]
    assert trial_rows[0]["cause"] == "preempted"
    good, hopeless = [place.home / "runs" / t["run_id"] for t in trial_rows[1:]]
    assert (causes(good), list(deterministic(good))) == (["preempted", "ok"], list(range(601)))
    assert (causes(hopeless), place.queue()) == (["pruned"], {})
    submissions = [json.loads(p.read_text())["runs"] for p in place.home.glob("runs/submissions/*/submission.json")]
    assert sorted(run for runs in submissions for run in runs) == sorted(t["run_id"] for t in trial_rows)


def test_a_cancelled_search_stops_and_the_same_command_continues_it(cluster: Settings, tmp_path: Path) -> None:
    place = SlurmHome(tmp_path, cluster)
    command = ["-m", "rlvr.run", *GRID, "lr=3e-2,1e-2", "steps=600", "evaluation.every=600"]
    process = place.start(*command)
    try:
        wait_for(lambda: process.poll() is not None or any(steps_done(run) >= 1 for run in place.runs().values()))
        # Read from the disk: while a busy machine starts a command, the run could take all of its steps.
        (sweep,) = Ledger(place.home).sweeps()
        code, out = place.python("-m", "sweeps", "cancel", sweep.sweep_id)
        assert code == 0, out
        process.wait(60)
    finally:
        process.kill()
    (first,) = place.runs().values()
    wait_for(lambda: any(causes(first)))
    assert causes(first) == ["preempted"]
    (trial,) = trials(place.home)
    assert trial["state"] == "RUNNING"
    wait_for(lambda: place.queue() == {})
    code, out = place.python(*command)
    assert code == 0, out
    assert [t["state"] for t in trials(place.home)] == ["COMPLETE", "COMPLETE"]
    assert causes(first) == ["preempted", "ok"]
