from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path

import pytest

from rlvr import evaluate
from rlvr import run as door
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.sweeps import Ledger
from sweeps.json_output import launches_as_data
from sweeps.plan import write
from sweeps.session import Launch
from sweeps.verdict import LaunchOutcome
from tests.sweeps.test_plan import finish, planned

GRID = ["-m", "loss=grpo,rloo", "steps=4", "cluster=local", "--dry-run", "--json"]


@pytest.mark.slow
def test_a_dry_run_prints_its_runs_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    assert door.main([*GRID, "--show=2"]) == 0
    (launch,) = json.loads(capsys.readouterr().out)
    assert (launch["study"], launch["dry_run"]) == ("main", True)
    assert [run["name"] for run in launch["runs"]] == ["grpo-steps4-s0", "rloo-steps4-s0"]
    (run, _) = launch["runs"]
    keys = "run_id name arm group_id overrides state step steps hours hours_from"
    assert run.keys() == set(keys.split())
    about = (run["arm"], run["state"], run["step"], run["steps"], run["hours_from"])
    assert about == ("grpo-steps4", "new", 0, 4, "cost model")
    assert "loss=grpo" in run["overrides"]
    assert run["hours"] > 0
    (shown,) = launch["shown"]
    assert shown.keys() == {
        "run_ids",
        "notable",
        "floors",
        "prompts",
        "num_rows",
        "text_only",
        "lengths",
        "ends",
        "marks",
        "solutions",
    }
    assert shown["run_ids"] == [run["run_id"] for run in launch["runs"]]
    assert [prompt["problem"] for prompt in shown["prompts"]] == ["maze_7x7-train-0", "maze_7x7-train-1"]
    assert shown["prompts"][0].keys() == {"problem", "prompt", "num_tokens", "typed", "place", "read"}
    assert not list(tmp_path.iterdir())


def test_hours_are_of_the_steps_that_are_left(tmp_path: Path) -> None:
    """Another run of its kind took 7200 s for 4 steps; of 8 steps none are done, of 4 all."""
    ledger = Ledger(tmp_path)
    done = planned(["steps=4"])
    write(done, ledger)
    finish(ledger, done.runs[0].run_id, 4, 7200)
    launch = Launch(planned(["steps=4"], ["steps=8"]), LaunchOutcome(), on_slurm=False, dry_run=True)
    (data,) = launches_as_data([launch], ledger)
    rows = [(run["state"], run["hours"], run["hours_from"]) for run in data["runs"]]
    assert rows == [("finished", 0.0, "finished runs"), ("new", pytest.approx(4, rel=1e-3), "finished runs")]


def test_a_launch_has_directories_and_the_newest_scores(tmp_path: Path) -> None:
    ledger, plan = Ledger(tmp_path), planned(["steps=4"])
    write(plan, ledger)
    (run,) = plan.runs
    with contextlib.closing(JournalWriter(ledger.run_dir(run.run_id), 1)) as writer:
        writer.record(0, {"evaluation/coins/avg_at_8": 0.25, "reward/mean": 0.5})
        writer.record(4, {"evaluation/coins/avg_at_8": 0.75})
    finish(ledger, run.run_id, 4, 60)
    (data,) = launches_as_data([Launch(plan, LaunchOutcome(), on_slurm=False, dry_run=False)], ledger)
    about = {"run_id": run.run_id, "name": run.name, "directory": str(ledger.run_dir(run.run_id))}
    ended = {"state": "finished", "message": "", "scores": {"evaluation/coins/avg_at_8": 0.75}}
    assert data["runs"] == [about | ended]


def test_a_launch_is_described_by_status_and_not_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["steps=4", "--json"]) == 2
    assert "--json describes a plan: add --dry-run" in capsys.readouterr().err
    assert door.main(["steps=4", "--show=3"]) == 2
    assert "--show=3 shows prompts of a dry run: add --dry-run" in capsys.readouterr().err
    assert [door.num_shown(words) for words in ([], ["--dry-run", "--show"], ["--show=3", "--dry-run"])] == [0, 1, 3]
    assert evaluate._parser().parse_intermixed_args(shlex.split("RUN --json")).json
