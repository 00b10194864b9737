"""`sweeps retry` on real processes: what failed is trained from its config on the ledger, in another process."""

import json
from pathlib import Path

import pytest

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.sweeps import Ledger
from sweeps.plan import write
from tests.slurm.stand_in import FakeSlurm
from tests.sweeps.test_commands import command
from tests.sweeps.test_plan import planned

pytestmark = [pytest.mark.slow, pytest.mark.real]

SMALL = [
    *("task.size=5", "task.test_problems=4", "model.steps=5", "model.batch=8", "steps=1", "rollout.prompts=4"),
    *("rollout.samples=2", "rollout.dynamic_sampling=none", "evaluation.samples=4", "evaluation.k=[1]"),
    *("cluster=local", "cluster.workers=1", "tracker=none"),
]


def failed_twins(home: Path) -> tuple[Ledger, str, str, str]:
    """(ledger, sweep, its two runs), which have failed."""
    ledger, plan = Ledger(home), planned(*([*SMALL, "name=first-try", f"seed={seed}"] for seed in (0, 1)))
    write(plan, ledger)
    one, other = (run.run_id for run in plan.runs)
    for run_id in (one, other):
        with Attempt.open(ledger.run_dir(run_id)) as attempt:
            attempt.close("error", "a cosmic ray")
    return ledger, plan.sweep_id, one, other


def test_a_failed_run_is_trained_again_and_its_neighbour_left(tmp_path: Path) -> None:
    """And no sweep is made of it: `first-try` still means both runs."""
    ledger, sweep_id, one, other = failed_twins(tmp_path)
    done = command(tmp_path, "retry", one)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [sweep.sweep_id for sweep in ledger.sweeps()] == [sweep_id]
    assert set(ledger.resolve_sweep("first-try").run_ids) == {one, other}
    assert [(s.state, s.attempt) for s in ledger.states([one, other])] == [("finished", 2), ("failed", 1)]


def test_a_pruned_run_is_trained_on_only_if_it_is_named(tmp_path: Path) -> None:
    ledger, sweep_id, one, other = failed_twins(tmp_path)
    with Attempt.open(ledger.run_dir(other)) as attempt:
        attempt.close("pruned", "trial 1 of a search")
    done = command(tmp_path, "retry", sweep_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 pruned run stays so: `retry RUN` trains one on." in done.stderr
    assert [s.state for s in ledger.states([one, other])] == ["finished", "pruned"]
    assert "1 pruned run stays so" in command(tmp_path, "retry", sweep_id).stderr
    done = command(tmp_path, "retry", other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ledger.state(other).state == "finished"


def test_what_the_newest_launch_sent_to_slurm_goes_there_again_whatever_a_finished_run_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    bandit = ["task=bandit", "model=table", "tracker=none"]
    here, there = ["cluster=local"], ["cluster=slurm", "cluster.partition=long"]
    before, plan = (planned(*([*bandit, *where, f"seed={seed}"] for seed in (0, 1))) for where in (here, there))
    write(before, ledger)
    finished, other = (run.run_id for run in before.runs)
    with Attempt.open(ledger.run_dir(finished)) as attempt:
        attempt.close("ok")
    write(plan, ledger)
    fake = FakeSlurm.installed(tmp_path, monkeypatch)
    fake.programs(sinfo="printf '%s|64|256000|gpu:8|infinite\\n' 'main*' long")
    done = command(tmp_path, "retry", plan.sweep_id)
    assert done.returncode == 0, done.stdout + done.stderr
    (array,) = tmp_path.glob("runs/submissions/*/array.sbatch")
    assert json.loads((array.parent / "submission.json").read_text())["runs"] == [other]
    assert ledger.state(other).attempt == 0
    report = ledger.sweep_dir(plan.sweep_id) / "report.sbatch"
    assert "#SBATCH --partition=long" in report.read_text().splitlines()


def test_a_run_whose_config_is_broken_is_named_and_its_neighbour_trained(tmp_path: Path) -> None:
    ledger, sweep_id, one, other = failed_twins(tmp_path)
    (file := ledger.run_dir(other) / "config.yaml").write_text("loss: {")
    done = command(tmp_path, "retry", sweep_id)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"run {other}: {file} is no YAML" in done.stderr
    assert "1 of 2 runs finished, 1 failed" in done.stdout
    assert [state.state for state in ledger.states([one, other])] == ["finished", "failed"]
    assert "is no YAML" in ledger.state(other).message
