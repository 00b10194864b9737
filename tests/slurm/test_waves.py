"""A sweep larger than the queue may be is submitted in waves by its own jobs; what stands in the way is said."""

import errno
import fcntl
import os
import re
import time
from pathlib import Path

import pytest

from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_json
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.runs import FORMAT
from rlvr.ledger.sweeps import Ledger
from rlvr.run import main
from slurm import client
from slurm.client import QueuedTask
from slurm.supervise import Supervisor
from sweeps import commands, start
from sweeps.plan import write
from sweeps.planned import read_launchable
from sweeps.search import runs as search
from sweeps.slurm import follow, launch, submissions, waves
from sweeps.slurm.job_of_runs import ArrayTask
from sweeps.slurm.launch import submit, submit_waiting
from sweeps.slurm.submissions import LATER, Queue, history, with_queue_states
from sweeps.slurm.waves import waiting_for_room
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, SlurmHome, causes, wait_for
from tests.slurm.stand_in import REFUSED, FakeSlurm
from tests.support.words import newest
from tests.sweeps.test_plan import planned


def test_the_limits_of_a_site_are_told_from_wrong_accounts() -> None:
    for error, full, advice in (
        (REFUSED, True, "no more jobs in the queue now"),
        (REFUSED.replace("AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit"), True, "no more jobs in the queue"),
        (REFUSED.replace("AssocMaxSubmitJobLimit", "QOSMaxWallDurationPerJobLimit"), False, "QOSMaxWallDurationPerJob"),
        ("Batch job submission failed: Requested node configuration is not available", False, "`sinfo` lists"),
    ):
        assert client.is_full(error) == full
        assert advice in client.advice(error)
        assert "account=" not in client.advice(error)


def test_a_run_waits_for_room_only_while_jobs_are_left_that_submit_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for run_id in "ab":
        ledger.create_run(run_id, "{}", {"name": run_id})
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": run_id} for run_id in "ab"])
    waves.write(ledger, "s", ["b"])
    assert waiting_for_room(ledger) == {"b": "s"}
    waiting = Queue({"a": QueuedTask("7_0", "rlvr-x", 0, "PENDING", "None", "")}, later=frozenset("b"))
    states = with_queue_states(ledger, ledger.states("ab"), waiting)
    assert [(s.state, s.phase) for s in states] == [("queued", "PENDING"), ("queued", LATER)]
    assert [s.state for s in with_queue_states(ledger, ledger.states("ab"), Queue({}))] == ["planned", "planned"]
    waves.write(ledger, "s", None)
    assert waiting_for_room(ledger) == {}


GROWING = [*BANDIT, "divergence=js,hd", "until=decided", "budget=12", "cluster=slurm", "tracker=none"]


@pytest.mark.slow
def test_a_growing_sweep_that_slurm_refuses_leaves_nothing_behind(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.programs(sbatch="echo Invalid account >&2; exit 1")
    assert main([*GROWING, "seed=0,1"]) == 2
    assert "SLURM refused the jobs: Invalid account" in capsys.readouterr().err
    assert fake.ledger.runs() == fake.ledger.sweeps() == []


@pytest.mark.slow
@pytest.mark.parametrize("grows", [[], ["until=decided", "budget=12"]], ids=["grid", "growing"])
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_where_files_cannot_be_locked_nothing_is_started_or_left_behind(
    cluster: str, grows: list[str], fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    ledger = fake.ledger
    monkeypatch.setattr(fcntl, "flock", flock)
    assert main([*BANDIT, "divergence=js,hd", *grows, f"cluster={cluster}", "tracker=none"]) == 2
    locked = rf"{ledger.root}/\S*lock cannot be locked: No locks available.*RLVR_HOME"
    assert re.search(locked, capsys.readouterr().err)
    assert ledger.runs() == []
    assert not list(ledger.root.glob("sweeps/*"))
    assert not fake.jobs()


@pytest.mark.slow
def test_a_refused_launch_leaves_the_runs_that_another_sweep_names_in_the_meantime(fake: FakeSlurm) -> None:
    """While sbatch is asked, another command puts a sweep of the run with seed 0 on the ledger."""
    words = ["tracker=none", "cluster=slurm"]
    shared = planned([*BANDIT[1:], "seed=0", *words]).runs[0].run_id
    line = f'{{"run_id": "{shared}"}}'
    sbatch = f"""
        mkdir -p "$RLVR_HOME/runs/sweeps/other" && cd "$RLVR_HOME/runs/sweeps/other"
        echo '{line}' > manifest.jsonl && echo '{{"study": "x", "format": {FORMAT}}}' > sweep.json
        echo Invalid account >&2; exit 1"""
    fake.programs(sbatch=sbatch)
    ledger = fake.ledger
    assert main([*BANDIT, "seed=0,1", *words]) == 2
    assert ([sweep.sweep_id for sweep in ledger.sweeps()], ledger.runs()) == (["other"], [shared])


@pytest.mark.parametrize("others_first", [True, False])
def test_a_refused_launch_leaves_the_sweep_that_another_command_has_recorded_too(
    others_first: bool, tmp_path: Path
) -> None:
    sweep = planned(*([*BANDIT[1:], f"seed={seed}"] for seed in range(2)))
    ids = sorted(run.run_id for run in sweep.runs)
    mine, other = Ledger(tmp_path), Ledger(tmp_path)
    commands, undone = (other, mine) if others_first else (mine, other), list[str]()

    def refuse(*ledgers: Ledger) -> None:
        with start.forgotten_if_refused(mine, sweep.sweep_id, ids, undo=lambda: undone.append("query")):
            for ledger in ledgers:
                write(sweep, ledger)
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse(mine)
    assert (mine.runs(), undone) == ([], ["query"])
    with pytest.raises(ValueError, match="refused"):
        refuse(*commands)
    assert undone == ["query"]  # what the launch used up stays used: the other command goes on
    assert (other.sweep(sweep.sweep_id).run_ids, other.runs()) == ([run.run_id for run in sweep.runs], ids)


def test_who_waits_for_a_growing_sweep_waits_for_its_later_waves(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the queue was looked at, the job at the end of the first wave adds a run, and is gone."""
    monkeypatch.setattr(follow, "LOOK_S", 0.0)
    ledger = fake.ledger
    for run_id in "ab":
        with Attempt.open(ledger.create_run(run_id, "{}", {"name": run_id})) as attempt:
            attempt.close(Cause.OK)
    ledger.record_sweep("s", {"study": "x", "until": {"rule": "decided"}}, [{"run_id": "a"}])
    report = submissions.record(ledger, "s", [], {"report": True})
    fake.queue.write_text(f"1|N/A|RUNNING|||{submissions.job_name(report)}\n")
    manifest = layout.manifest(ledger.sweep_dir("s"))
    fake.programs(squeue=f"""cat "$QUEUE"; : > "$QUEUE"; echo '{{"run_id": "b"}}' >> {manifest}""")
    outcome = follow.follow(ledger, "s", ["a"], [], None)
    assert outcome is not None
    assert outcome.finished == ["a", "b"]


@pytest.mark.slow
def test_a_run_that_diverged_is_not_started_again_by_a_growing_sweep(fake: FakeSlurm) -> None:
    ledger = fake.ledger
    assert main(GROWING) == 0
    first, *others = ledger.runs()
    assert len(others) == 5  # two arms, three seeds
    with Attempt.open(ledger.run_dir(first)) as attempt:
        attempt.close("diverged")
    fake.queue.write_text("")  # all jobs are gone
    assert main(GROWING) == 0
    newest = next(content for _, content in history(ledger) if content["runs"])
    assert sorted(newest["runs"]) == others


@pytest.mark.slow
def test_the_next_run_has_the_place_of_one_that_may_not_be_requeued_and_a_growing_sweep_its_report(
    fake: FakeSlurm,
) -> None:
    """Six runs, then the report, and room for one job at a time."""
    fake.set(ROOM="1")
    assert main(newest([*GROWING, "budget=6", "cluster.requeues=0", "cluster.report=false"])) == 0
    ledger = fake.ledger
    for left in (5, 4, 3, 2, 1, 0):
        assert (len(waiting_for_room(ledger)), fake.jobs()["report"]) == (left, 0)
        submission, content = history(ledger)[0]
        write_json(layout.run_end(submission, content["runs"][0]), {"cause": "time_limit", "message": ""})
        fake.queue.write_text("")
        assert ArrayTask(submission, Supervisor()).run() == Cause.TIME_LIMIT.code
    assert fake.jobs() == {"report": 1}


@pytest.mark.slow
def test_a_trial_that_waits_for_room_has_not_ended_and_is_submitted_when_there_is(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.set(ROOM="1")
    monkeypatch.setattr(search, "LOOK_S", 0.0)
    trials = planned(*([*BANDIT[1:], f"seed={seed}"] for seed in range(3)))
    write(trials, ledger := fake.ledger)
    first, second, third = (run.run_id for run in trials.runs)
    runs = search.SlurmRuns(ledger, trials.sweep_id, None)
    for run in trials.runs:
        runs.start(run)
        assert runs.turn() == {}
    assert waiting_for_room(ledger) == dict.fromkeys([second, third], trials.sweep_id)
    assert runs.turn() == runs.turn() == {}
    fake.queue.write_text("")  # the first one's job is gone, and could submit none
    assert [set(runs.turn()) for _ in range(3)] == [set(), {first}, set()]
    assert waiting_for_room(ledger) == {third: trials.sweep_id}


def test_a_run_with_a_job_gets_no_second_one_and_what_waits_for_room_goes_on_waiting(fake: FakeSlurm) -> None:
    write(sweep := planned(*([*BANDIT[1:], f"seed={seed}", "cluster.report=false"] for seed in (0, 1))), fake.ledger)
    first, second = (run.run_id for run in sweep.runs)
    configs, _ = read_launchable(fake.ledger, [first])
    waves.write(fake.ledger, sweep.sweep_id, [second])
    for _ in range(2):
        submit(fake.ledger, sweep.sweep_id, list(configs.items()))
        assert fake.jobs() == {first: 1}
        assert waiting_for_room(fake.ledger) == {second: sweep.sweep_id}
    fake.set(ROOM="1")
    assert submit_waiting(fake.ledger, sweep.sweep_id) is not None
    assert waiting_for_room(fake.ledger) == {second: sweep.sweep_id}
    assert len(history(fake.ledger)) == 1  # a refused submission is no record


def test_what_was_cancelled_while_a_job_submits_more_is_not_submitted(fake: FakeSlurm) -> None:
    """Runs of two sweeps wait for room; while those of one are handed in, what waits is removed."""
    fake.programs(sbatch='echo x >> "$RLVR_HOME/calls"; rm -f "$RLVR_HOME"/runs/sweeps/*/waves.json; echo 1')
    ledger = fake.ledger
    for seed in (0, 1):
        write(sweep := planned([*BANDIT[1:], f"seed={seed}", "cluster.report=false"]), ledger)
        waves.write(ledger, sweep.sweep_id, [sweep.runs[0].run_id])
    for sweep in ledger.sweeps():
        submit_waiting(ledger, sweep.sweep_id)
    assert ((fake.home / "calls").read_text(), len(history(ledger))) == ("x\n", 1)


def test_a_job_that_cannot_submit_more_on_a_full_disk_ends_as_its_runs_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in place of the directory of submissions raises an error of the file system, too."""
    ledger = Ledger(tmp_path)
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": "a"}])
    waves.write(ledger, "s", ["a"])
    layout.submissions(tmp_path).touch()
    waves.submit_more(ledger)
    assert "runs of sweep s still wait for room in the queue" in capsys.readouterr().out
    assert waiting_for_room(ledger) == {"a": "s"}


def test_cancel_waits_for_a_launch_that_is_submitting(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LOCK_S", 0.0)
    ledger = fake.ledger
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": "a"}])
    waves.write(ledger, "s", ["a"])
    layout.submissions(fake.home).mkdir()
    held = lock(layout.lock(layout.submissions(fake.home)))
    assert held is not None
    with pytest.raises(ValueError, match="another launch has been submitting"):
        launch.cancel(ledger, ["a"], "s")
    assert waiting_for_room(ledger) == {"a": "s"}
    unlock(held)
    assert (launch.cancel(ledger, ["a"], "s"), waiting_for_room(ledger)) == ([], {})


def test_cancel_names_a_sweep_whose_runs_no_job_is_left_to_submit(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job at its end submits what waits for room, but not a cancelled one."""
    fake.set(ROOM="1")
    first, second = (planned([*BANDIT[1:], f"seed={seed}", "cluster.report=false"]) for seed in (0, 1))
    for sweep in (first, second):
        write(sweep, fake.ledger)
        submit(fake.ledger, sweep.sweep_id, [(run.run_id, run.config) for run in sweep.runs])
    for sweep, said in ((first, f"`python -m sweeps retry {second.sweep_id}` submits the rest."), (second, "")):
        launch.cancel(fake.ledger, [run.run_id for run in sweep.runs], sweep.sweep_id)
        assert capsys.readouterr().out.strip().partition(": ")[2] == said


def test_a_sweep_whose_last_waiting_run_another_one_has_finished_gets_its_report(fake: FakeSlurm) -> None:
    write(sweep := planned([*BANDIT[1:], "cluster=slurm", "tracker=none"]), fake.ledger)
    (run,) = sweep.runs
    waves.write(fake.ledger, sweep.sweep_id, [run.run_id])
    with Attempt.open(fake.ledger.run_dir(run.run_id)) as attempt:
        attempt.close(Cause.OK)
    submit_waiting(fake.ledger, sweep.sweep_id)
    assert (fake.jobs(), waves.read(fake.ledger)) == ({"report": 1}, {})


def test_a_job_that_submits_a_wave_does_not_wait_for_its_runs(fake: FakeSlurm) -> None:
    words = ["cluster=slurm", "cluster.wait=true", "cluster.report=false", "tracker=none"]
    write(sweep := planned([*BANDIT[1:], *words]), fake.ledger)
    configs = {run.run_id: run.config for run in sweep.runs}
    assert start.start(fake.ledger, sweep.sweep_id, configs, unless_cancelled=True).exit_code == 0
    assert fake.jobs().keys() == configs.keys()  # it is still in the queue


SHOW_JOB = r"sed -n 's/^[0-9]*_\([0-9]*\)|.*|\([A-Z]*\)|||\(.*\)/ArrayTaskId=\1 JobState=\2 JobName=\3 Reason=None/p' "


@pytest.mark.slow
def test_jobs_that_a_cached_squeue_does_not_show_yet_are_not_submitted_again_and_are_cancelled(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*BANDIT, "seed=0,1", "cluster=slurm", "tracker=none", "cluster.report=false"]
    fake.set(QUEUE=f"{fake.queue}.real")
    fake.queue.with_name("queue.real").touch()
    fake.programs(squeue=f"cat {fake.queue}", scontrol=f"{SHOW_JOB} $QUEUE")  # squeue: of a minute ago
    for said in ("2 runs submitted to SLURM", "0 runs submitted to SLURM, 2 have a job already"):
        assert main(words) == 0
        assert said in capsys.readouterr().out
    assert fake.states() == [("queued", "PENDING")] * 2
    (sweep,) = fake.ledger.sweeps()
    assert commands.main(["cancel", sweep.sweep_id]) == 0
    assert fake.queue.with_name("queue.real.cancelled").read_text() == "-Q 1_0 1_1\n"
    names = {line.split("|")[5] for line in fake.queue.with_name("queue.real").read_text().splitlines()}
    assert [re.fullmatch(r"main-lad-js-eta0.25-rlvr-[0-9a-f]{12}", name) is not None for name in names] == [True], names


@pytest.mark.slow
def test_a_cancelled_sweep_that_grows_goes_on_only_when_its_user_says_so(
    fake: FakeSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.programs(sbatch="echo 1", squeue="")  # what is submitted is gone at once
    ledger = fake.ledger
    assert main(GROWING) == 0
    (sweep,) = ledger.sweeps()

    def num_handed_in_by_its_job() -> int:
        before = len(history(ledger))
        waves.continued(ledger.home, sweep.sweep_id, "--unless-cancelled")
        return len(history(ledger)) - before

    assert num_handed_in_by_its_job() > 0
    for goes_on in (lambda: main(GROWING), lambda: commands.main(["retry", sweep.sweep_id])):
        assert (commands.main(["cancel", sweep.sweep_id]), num_handed_in_by_its_job()) == (0, 0)
        assert f"sweep {sweep.sweep_id} was cancelled. `python -m sweeps retry" in capfd.readouterr().err
        assert goes_on() == 0
        assert num_handed_in_by_its_job() > 0


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1200)
def test_a_sweep_of_nine_runs_where_four_jobs_may_be_queued_is_finished_by_its_jobs(
    cluster: Settings, tmp_path: Path
) -> None:
    place = SlurmHome(tmp_path, cluster)
    place.client("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=4")
    short = ["steps=2", "evaluation.every=2", "tracker=none", "cluster.report=false", "cluster.memory_gb=0.8"]
    try:
        wait_for(lambda: "4" in place.client("sacctmgr", "-nP", "show", "assoc", "user=root", "format=MaxSubmitJobs"))
        place.client("scontrol", "update", "PartitionName=main", "State=DOWN")
        out = place.launch(*short, "seed=0,1,2,3,4,5,6,7,8")
        assert "4 runs submitted to SLURM" in out
        assert "5 later, by those jobs, when the queue has room" in out
        assert sorted(run["state"] for run in place.status().values()) == ["queued"] * 9
        # Those in the queue are to ask for more, which SLURM would not hear.
        code, out = place.python(
            "-m", "rlvr.run", *newest([*BANDIT, *short, "seed=0,1,2,3,4,5,6,7,8", "cluster.time_min=9"])
        )
        assert code == 2, out
        assert "4 of 9 runs have a job that asked for cluster.time_min=10, not 9. End it with `python -m sweeps" in out
        place.client("scontrol", "update", "PartitionName=main", "State=UP")
        wait_for(lambda: not place.queue())
    finally:
        place.client("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=-1")
        place.client("scontrol", "update", "PartitionName=main", "State=UP")
    assert [causes(run_dir) for run_dir in place.runs().values()] == [["ok"]] * 9
    assert waiting_for_room(Ledger(place.home)) == {}


@pytest.mark.slow
def test_a_silent_squeue_costs_seconds_and_the_states_on_the_ledger_are_shown(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BANDIT, "cluster=slurm", "tracker=none", "cluster.report=false"]) == 0
    fake.programs(squeue="exec sleep 60")
    monkeypatch.setattr(commands, "PATIENCE_S", 0.5)
    began = time.monotonic()
    assert commands.main(["status"]) == 0
    assert time.monotonic() - began < 10
    out = capsys.readouterr().out
    assert "SLURM does not answer: these are the states on the ledger." in out
    assert "queued (SLURM does not answer)" in out
