"""`sweeps retry` on real processes: what failed is trained from its config on the ledger, in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.sweeps import Ledger
from sweeps.plan import write
from tests.sweeps.test_cli import command
from tests.sweeps.test_plan import planned

pytestmark = [pytest.mark.slow, pytest.mark.real]

SMALL = [
    "task.size=5",
    "task.test_problems=4",
    "model.steps=5",
    "model.batch=8",
    "steps=1",
    "rollout.prompts=4",
    "rollout.samples=2",
    "rollout.dynamic_sampling=none",
    "evaluation.samples=4",
    "evaluation.k=[1]",
    "cluster=local",
    "cluster.workers=1",
    "tracker=none",
]


def test_a_failed_run_is_trained_again_and_its_neighbour_left(tmp_path: Path) -> None:
    """Its config is one that a version froze which knew fewer settings of `cluster`."""
    ledger, plan = Ledger(tmp_path), planned([*SMALL, "seed=0"], [*SMALL, "seed=1"])
    write(plan, ledger)
    one, other = (run.run_id for run in plan.runs)
    for run_id in (one, other):
        with Attempt.open(ledger.run_dir(run_id)) as attempt:
            attempt.close("error", "a cosmic ray")
    config = yaml.safe_load((file := ledger.run_dir(one) / "config.yaml").read_text())
    file.write_text(yaml.safe_dump({**config, "cluster": {"backend": "local", "workers": 1}}))
    done = command(tmp_path, "retry", one)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(s.state, s.attempt) for s in ledger.states([one, other])] == [("finished", 2), ("failed", 1)]
