from pathlib import Path

import pytest

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sweeps import Ledger
from sweeps.plan import write
from sweeps.result import SweepResult
from sweeps.session import Launch
from sweeps.verdict import LaunchOutcome
from tests.sweeps.test_plan import planned


@pytest.fixture
def sweep(tmp_path: Path) -> SweepResult:
    plan = planned(["seed=0", "steps=5"], ["seed=1", "steps=5"])
    write(plan, Ledger(tmp_path))
    return SweepResult.of(Launch(plan, LaunchOutcome(), on_slurm=False, dry_run=False), Ledger(tmp_path))


def test_runs_are_found_by_place_name_and_id(sweep: SweepResult) -> None:
    first, second = sweep
    assert (len(sweep), first.name, second.name) == (2, "lad-js-eta0.25-steps5-s0", "lad-js-eta0.25-steps5-s1")
    assert sweep[0] is sweep[first.name] is sweep[first.run_id] is first
    assert (sweep[1:], sweep[-1]) == ((second,), second)
    with pytest.raises(KeyError):
        sweep["nothing"]


def test_a_run_shows_what_stands_on_the_ledger_now(sweep: SweepResult) -> None:
    run = sweep[0]
    assert (run.state, len(run.metrics), run.config.steps) == ("planned", 0, 5)
    with Attempt.open(run.directory) as attempt:
        spool = JournalWriter(run.directory, attempt.number)
        spool.record(1, {"reward/mean": 0.25})
        spool.record(2, {"reward/mean": 0.5, "loss/total": -1.0})
        spool.close()
        attempt.close("error", "a cosmic ray")
    assert (run.state, run.standing.message) == ("failed", "a cosmic ray")
    assert (run.metrics["reward/mean"].to_dict(), run.metrics.index.name) == ({1: 0.25, 2: 0.5}, "step")
    assert repr(run) == f"<run lad-js-eta0.25-steps5-s0 ({run.run_id}): failed>"
    assert repr(sweep) == f"<sweep {sweep.sweep_id} of main: 2 runs, 1 failed, 1 planned>"


def test_a_dry_run_has_configs_without_a_ledger(tmp_path: Path) -> None:
    plan = planned(["steps=5"])
    (run,) = SweepResult.of(Launch(plan, LaunchOutcome(), on_slurm=False, dry_run=True), Ledger(tmp_path))
    assert (run.config.steps, run.state, len(run.metrics)) == (5, "planned", 0)
    assert not list(tmp_path.iterdir())
