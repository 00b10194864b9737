"""A sweep that grows, really run on mazes of 5×5: from the forecast to the report, killed and repeated on the way."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from analysis.frames.load import load
from rlvr.ledger.runs import read_config
from rlvr.ledger.sweeps import Ledger
from sweeps import start
from sweeps.growing import planning, record
from sweeps.growing.record import GrowingRecord
from sweeps.growing.stopping import next_wave
from tests.end_to_end.test_sweep import python
from tests.support.composed import composed
from tests.support.composing import composing
from tests.sweeps.test_plan import planned
from tests.test_run import Command, command

__all__ = ["command"]  # a fixture

TINY = [
    *("task.size=5", "task.test_problems=8", "model.steps=150", "model.batch=32", "steps=2", "rollout.prompts=4"),
    *("rollout.samples=4", "rollout.dynamic_sampling=none", "evaluation.every=2", "evaluation.samples=4"),
    *("evaluation.k=[1,4]", "checkpoint.every=100", "cluster=local", "tracker=none"),
]
BANDIT = ["task=bandit", "model=table", "rollout.prompts=1", "rollout.dynamic_sampling=none", "trainer.updates=1"]
# A learning rate of 0.3 makes noise of any policy: the largest difference that there is.
CONTRAST = ["-m", "loss=grpo", "lr=1e-6,0.3", *TINY, "until=decided", "budget=12"]


def info(home: Path) -> dict[str, object]:
    (path,) = (home / "runs/sweeps").glob("*/planned.jsonl")
    return dict(Ledger(home).sweep(path.parent.name).info)


REFUSED = [
    (["until=best"], "until= needs a budget: pass the most runs in all"),
    (["until=best:entropy", "budget=9"], "until=best:entropy: no value of it is better than another."),
    (["budget=9"], "budget=9 has no effect without until=decided"),
    (["until=decided", "budget=3h"], "no finished run of the ledger is like these"),
    (["until=decided:pass@64", "budget=9", "--dry-run"], "pass@64: no run measured it. Did you mean pass@8"),
    (["until=decided:foo", "budget=9"], "until=decided:foo: no run measured it."),
    (["until=decided:hours", "budget=9"], "hours would never be decided: without GPUs that"),
    (["until=decided:time/step_s", "budget=9"], "step_s would never be decided: without"),
    (
        ["seed=0,1,2", "exclude=loss=grpo seed=1", "until=decided", "budget=12"],
        "exclude='loss=grpo seed=1': until and tune give every arm every seed. Drop seed from exclude.",
    ),
    (
        ["seed=0,1,2", "also=loss=pacs seed=5", "until=decided", "budget=12"],
        "also='loss=pacs seed=5': until and tune give every arm every seed. Drop seed from also.",
    ),
    (["controls=still", "tune=lr:1e-4,1e-3"], "controls=still has lr=0, which tune=lr would replace."),
    ([*BANDIT, "tune=lr:1e-4,1e-3"], "task=bandit has no validation problems. Drop it, or the tune= that asks for it."),
    ([*TINY, "until=decided", "budget=12", "cluster.gpus=99"], "cluster.gpus=99, and this machine has"),
]


@pytest.mark.slow
def test_what_cannot_be_meant_is_refused_before_anything_is_written(command: Command, tmp_path: Path) -> None:
    for words, told in REFUSED:
        code, _, errors = command("-m", "loss=grpo,rloo", *words, home=tmp_path)
        assert (code, told in "\n".join(errors)) == (2, True), errors
        assert not (tmp_path / "runs").exists(), words
    claim = 'claims=[{says: a, metric: avg, arm: "loss=rloo", relation: ">"}]'
    two = ["-m", "loss=grpo,rloo", *TINY, "model.seed=0,1", claim, "until=decided", "budget=12"]
    code, _, errors = command(*two, home=tmp_path)
    assert (code, "and two decide nothing, whatever their seeds" in "\n".join(errors)) == (2, True), errors
    code, _, errors = command("loss=grpo", "until=decided", "budget=9", home=tmp_path)
    assert (code, "until has no effect on a single run" in "\n".join(errors)) == (2, True)


@pytest.mark.slow
def test_a_dry_run_says_looks_what_each_arm_gets_and_the_most_it_can_cost(command: Command, tmp_path: Path) -> None:
    words = ["seed=4,5", *TINY, "until=decided", "budget=25", "--dry-run"]
    code, out, errors = command("-m", "loss=grpo,rloo", *words, home=tmp_path)
    assert code == 0, errors
    assert "looks at 3 (" in out
    assert "At most 24 runs in all" in out  # 12 seeds of two arms: the 25th run has no partner
    assert len(re.findall(r"  new\b", out)) == 6
    code, out, errors = command("-m", "loss=grpo,rloo", *TINY, "tune=lr:1e-5,3e-5,1e-4", "--dry-run", home=tmp_path)
    assert code == 0, errors
    assert "3 values (lr=1e-5, lr=3e-5, lr=1e-4), seeds 1000, for each of 2 arms: 6 runs; then 2 runs" in out
    assert not (tmp_path / "runs").exists()


def recorded(ledger: Ledger, *words: str) -> GrowingRecord:
    """The record of a sweep of two losses, as a command with these words finds it."""
    with composing():
        master, _ = composed("until=decided", "budget=6", *words)
    arms = [[f"loss={loss}", *words] for loss in ("grpo", "rloo")]
    return planning.planned(master, arms, ledger, lambda points: planned(*map(list, points)))[0]


@pytest.mark.slow
def test_a_repeated_command_decides_where_and_how_runs_run_also_those_begun(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    first = recorded(ledger, "cluster.threads=1")
    first.write()
    first.begin(next_wave(first)[:1])
    (begun,) = first.begun
    repeated = recorded(ledger, "cluster.threads=3", "tracker=none", "checkpoint.every=7")
    repeated.write()
    there = GrowingRecord.read(ledger, first.sweep_id).candidates
    assert [candidate.run.run_id for candidate in there] == [candidate.run.run_id for candidate in first.candidates]
    for config in (*(candidate.run.config for candidate in there), read_config(ledger.run_dir(begun.run.run_id))):
        settings = config["cluster"]["threads"], config["tracker"]["enabled"], config["checkpoint"]["every"]
        assert settings == (3, False, 7)


@pytest.mark.slow
def test_a_repeated_command_decides_what_it_is_called_and_not_by_what_it_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    recorded(ledger, "tags=first", "baseline='loss=grpo'").write()
    looked = GrowingRecord.read(ledger, ledger.sweeps()[0].sweep_id)
    looked.info["until"]["looks"].append({"seeds": 3})
    repeated = recorded(ledger, "tags=second", "baseline='loss=rloo'", "tracker=none")
    assert "baseline and claims stay as the first launch fixed them." in capsys.readouterr().err
    looked.save()  # by a controller, in the meantime
    repeated.write()
    (sweep,) = ledger.sweeps()
    assert (sweep.info["tags"], sweep.info["baseline"]) == ("second", "loss=grpo")
    assert (len(sweep.info["until"]["looks"]), sweep.info["tracker"]["enabled"]) == (1, False)


@pytest.mark.slow
def test_a_repeated_command_goes_on_from_what_a_killed_one_has_written(tmp_path: Path) -> None:
    first = recorded(ledger := Ledger(tmp_path))
    first.write()
    planned, kept = (tmp_path / f"runs/sweeps/{first.sweep_id}/{name}" for name in ("planned.jsonl", "sweep.json"))
    whole, info = planned.read_text(), kept.read_text()
    planned.unlink()  # killed after the first of the two files
    recorded(ledger).write()
    assert (planned.read_text(), kept.read_text()) == (whole, info)
    planned.write_text(whole[: len(whole) // 2])
    recorded(ledger).write()
    assert (planned.read_text(), kept.read_text()) == (whole, info)
    kept.write_text(info[: len(info) // 2])
    with pytest.raises(ValueError, match=r"sweep.json is damaged.* Put it back, or delete .*/runs/sweeps/"):
        recorded(ledger)
    kept.unlink()  # by an older version, which wrote it last
    recorded(ledger).write()
    assert (planned.read_text(), json.loads(kept.read_text())["until"]) == (whole, json.loads(info)["until"])


@pytest.mark.slow
def test_a_command_that_is_typed_twice_at_once_leaves_the_sweep_of_the_first_as_it_is(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    first, second = recorded(ledger), recorded(ledger)  # both before anything is written
    ids = [candidate.run.run_id for candidate in first.candidates]

    def refuse() -> None:
        with (
            start.forgotten_if_refused(ledger, second.sweep_id, ids),
            record.deciding_lock_held(ledger, first.sweep_id),
        ):
            first.write()
            first.begin(next_wave(first))
            with record.deciding_lock_held(ledger, second.sweep_id):
                second.write()

    with pytest.raises(record.AlreadyDeciding):
        refuse()
    with record.deciding_lock_held(ledger, second.sweep_id):  # as on SLURM, where it waits
        second.write()
    (sweep,) = ledger.sweeps()
    assert sorted(sweep.run_ids) == ledger.runs() == sorted(candidate.run.run_id for candidate in next_wave(first))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_large_difference_is_decided_before_the_budget_is_spent(tmp_path: Path) -> None:
    contrast = [word.replace("budget=12", "budget=24") for word in CONTRAST]
    process = python("-m", "rlvr.run", *contrast, home=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 300
    while process.poll() is None and not list((tmp_path / "runs").glob("*/attempts/1/exit.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)  # the launcher alone: its workers end by themselves
    process.communicate()
    process = python("-m", "rlvr.run", *contrast, home=tmp_path)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, out
    until = info(tmp_path)["until"]
    assert until["stopped"] == "decided"
    assert [look["seeds"] for look in until["looks"]] == until["seeds"][: len(until["looks"])]
    assert len(until["looks"]) < len(until["seeds"])
    (question,) = until["looks"][-1]["questions"]
    assert question["outcome"] == "below"
    report, _ = python("-m", "analysis", "--no-figures", home=tmp_path).communicate(timeout=200)
    assert f"below: {question['name']}" in report
    assert f"look {len(until['looks'])} of at most {len(until['seeds'])}" in report


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(600)
def test_what_is_tuned_trains_anew_with_the_best_value_under_seeds_of_its_own(tmp_path: Path) -> None:
    """A learning rate of 10 makes noise of any policy, one of 1e-9 changes none: the second must be picked."""
    tuned = ["-m", "loss=grpo,reinforce", "seed=3,4", *TINY, "tune=lr:10,1e-9"]
    process = python("-m", "rlvr.run", *tuned, home=tmp_path)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, out
    (path,) = (tmp_path / "runs/sweeps").glob("*/planned.jsonl")
    picks = Ledger(tmp_path).sweep(path.parent.name).info["tune"]["picks"]
    assert {pick["value"] for pick in picks.values()} == {"lr=1e-9"}, picks
    runs = [(run.loss, run.seed, run.knob("lr"), run.state) for run in load(tmp_path).rows]
    assert sorted(runs) == [(loss, seed, 1e-9, "finished") for loss in ("grpo", "reinforce") for seed in (3, 4)]
