"""What a launch leaves behind, and what goes on by itself, if the queue has room for a part of its jobs only, or if
sbatch fails although SLURM has accepted the job. SLURM is a program that keeps a list of jobs.
"""

from __future__ import annotations

import re

import pytest

from rlvr.ledger.files import mount
from rlvr.run import main
from slurm.supervise import Supervisor
from sweeps import before_launch, commands
from sweeps.slurm import waves
from sweeps.slurm.job_of_stage import StageTask
from sweeps.slurm.launch import Array, sharing, submit_waiting
from sweeps.slurm.submissions import LATER, history, record, with_queue_states
from sweeps.slurm.waves import waiting_for_room
from tests.end_to_end.test_extending import written
from tests.slurm.place import BANDIT
from tests.slurm.stand_in import FakeSlurm

ON_SLURM = ["cluster=slurm", "tracker=none"]
# Runs that start from a base policy, which a job builds first.
STAGED = ["-m", "task.size=5", "task.test_problems=4", "model.batch=4", *ON_SLURM, "cluster.report=false"]
GROWING = [*BANDIT, "divergence=js,hd", "until=decided", "budget=12", *ON_SLURM]  # six runs in its first wave
TIMEOUT = "Batch job submission failed: Socket timed out on send/recv operation"


# --- sbatch fails, and SLURM has the job


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param([*BANDIT, *ON_SLURM, "cluster.report=false"], id="runs"),
        pytest.param(STAGED, id="stage", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_slurm_has_although_sbatch_failed_keeps_its_sweep_and_is_not_doubled(
    words: list[str], fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.set(FAILS=TIMEOUT)
    assert main([*words, "seed=0,1"]) == 2
    assert "is kept, because it may have jobs" in capsys.readouterr().err
    assert len(fake.ledger.sweeps()) == 1
    assert len(runs := fake.ledger.runs()) == 2
    fake.monkeypatch.delenv("FAILS")
    assert main([*words, "seed=0,1"]) == 0
    assert fake.jobs() == {**dict.fromkeys(runs, 1), **({"stage": 1} if words == STAGED else {})}


def test_a_sweep_is_kept_where_slurm_neither_answers_sbatch_nor_squeue(fake: FakeSlurm) -> None:
    sbatch, squeue = f'touch "$RLVR_HOME/down"; echo {TIMEOUT} >&2; exit 1', '[ ! -e "$RLVR_HOME/down" ]'
    fake.programs(sbatch=sbatch, squeue=squeue)
    assert main([*BANDIT, *ON_SLURM]) == 2
    assert len(fake.ledger.sweeps()) == len(fake.ledger.runs()) == 1


@pytest.mark.slow
def test_a_launch_says_that_locks_do_not_hold_between_hosts(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the options of the mount say, and from then on the file in runs/."""
    home = fake.ledger.home
    for options, said in (({"x"}, ""), ({mount(home)[1][0]}, "locks hold on one host alone"), ({"x"}, "lock was free")):
        monkeypatch.setattr(before_launch, "LOCAL_LOCKS", options)  # the first one of the mount is rw or ro
        assert main([*BANDIT, *ON_SLURM, "cluster.report=false"]) == 0
        shown = capsys.readouterr().err
        assert said in shown
        assert ("one host" in shown) is bool(said)


# --- room for a stage, and for no more


@pytest.mark.slow
def test_runs_for_whose_stages_there_is_no_room_wait_for_it(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.set(ROOM="1")
    assert main([*STAGED, "model.steps=1,2,3"]) == 0
    assert "0 runs submitted to SLURM, 3 later, by those jobs" in capsys.readouterr().out
    assert fake.jobs() == {"stage": 1}
    assert fake.states() == [("queued", LATER)] * 3
    fake.set(ROOM="1000")
    assert main([*STAGED, "model.steps=1,2,3"]) == 0
    assert fake.jobs() == {"stage": 3, **dict.fromkeys(fake.ledger.runs(), 1)}


@pytest.mark.slow
def test_a_launch_with_room_for_nothing_leaves_nothing_behind_beside_a_job_that_submits_nothing(
    fake: FakeSlurm,
) -> None:
    report = record(fake.ledger, "other", [], {"report": "other"})
    fake.queue.write_text(f"1|N/A|PENDING|||rlvr-{report.name}\n")
    fake.set(ROOM="1")
    assert main([*STAGED, "seed=0,1"]) == main([*BANDIT, *ON_SLURM]) == 2
    assert fake.ledger.sweeps() == fake.ledger.runs() == []


@pytest.mark.slow
def test_the_job_of_a_stage_submits_the_runs_that_wait_for_room(fake: FakeSlurm) -> None:
    fake.set(ROOM="1")
    assert main([*STAGED, "model.steps=1", "seed=0,1"]) == 0
    assert len(waiting_for_room(fake.ledger)) == 2
    fake.set(ROOM="3")
    ((submission, _),) = history(fake.ledger)
    with Supervisor() as supervisor:
        assert StageTask(submission, supervisor).run() == 0
    assert waiting_for_room(fake.ledger) == {}
    assert fake.jobs() == {"stage": 1, **dict.fromkeys(fake.ledger.runs(), 1)}


@pytest.mark.slow
def test_a_stage_that_fails_is_not_submitted_again_and_the_others_go_on(fake: FakeSlurm) -> None:
    fake.set(ROOM="1")
    assert main([*STAGED, "model.steps=1,2", "+model.architecture.hidden_act=nothing"]) == 0
    ((submission, content),) = history(fake.ledger)
    (other,) = {*fake.ledger.runs()} - {content["run"]}
    (submission / "stage.out").write_text("KeyError: 'nothing'\n")  # as SLURM writes its log
    fake.set(ROOM="2")
    with Supervisor() as supervisor:
        assert StageTask(submission, supervisor).run() != 0
    assert fake.jobs() == {"stage": 2}
    assert [content["run"] for _, content in history(fake.ledger)] == [other, content["run"]]
    assert waiting_for_room(fake.ledger).keys() == {other}
    fake.end_first_job()
    shown = with_queue_states(fake.ledger, fake.ledger.states([content["run"], other]))
    assert [state.state for state in shown] == ["failed", "queued"]
    assert "KeyError: 'nothing'" in shown[0].message


@pytest.mark.slow
def test_cancel_leaves_a_stage_to_runs_that_wait_for_room(fake: FakeSlurm) -> None:
    fake.set(ROOM="1")
    assert main([*STAGED, "seed=0,1"]) == 0
    first, second = fake.ledger.runs()
    cancelled = fake.home / "bin/queue.cancelled"
    assert commands.main(["cancel", first]) == 0
    assert waiting_for_room(fake.ledger).keys() == {second}
    assert not cancelled.exists()
    assert commands.main(["cancel", second]) == 0
    assert cancelled.read_text() == "-Q 1\n"


@pytest.mark.slow
def test_a_job_submits_runs_whose_components_lie_elsewhere_and_their_errors_are_not_its_own(
    fake: FakeSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = written(fake.home / "elsewhere")
    fake.set(ROOM="1")
    words = ["task=weekdays", "model=table", "rollout.prompts=7", "trainer.updates=1", "seed=0,1,2"]
    assert main(["-m", "--config-dir", str(mine), *words, *ON_SLURM, "cluster.report=false"]) == 0
    assert len(waiting_for_room(fake.ledger)) == 2
    fake.queue.write_text("")
    waves.submit_more(fake.ledger)
    assert len(waiting_for_room(fake.ledger)) == 1
    (mine / "weekdays.py").write_text("raise SystemExit(7)\n")
    fake.queue.write_text("")
    waves.submit_more(fake.ledger)
    assert len(waiting_for_room(fake.ledger)) == 1
    assert "still wait for room in the queue" in capfd.readouterr().out


# --- no room for the report


@pytest.mark.slow
def test_the_report_of_a_growing_sweep_without_room_for_it_is_submitted_by_a_job(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.set(ROOM="6")
    assert main(GROWING) == 0
    assert "report later, by those jobs, when the queue has room" in capsys.readouterr().out
    (sweep,) = fake.ledger.sweeps()
    submit_waiting(fake.ledger, sweep.sweep_id)
    assert fake.jobs()["report"] == 0
    fake.end_first_job()
    submit_waiting(fake.ledger, sweep.sweep_id)
    assert fake.jobs()["report"] == 1
    assert waves.read(fake.ledger) == {}
    submit_waiting(fake.ledger, sweep.sweep_id)
    assert fake.jobs()["report"] == 1


@pytest.mark.slow
def test_a_report_without_room_until_all_jobs_of_its_sweep_have_ended_is_submitted_all_the_same(
    fake: FakeSlurm,
) -> None:
    fake.set(ROOM="6")
    assert main(GROWING) == 0
    fake.queue.write_text("")
    waves.submit_more(fake.ledger)  # by a job of another sweep
    assert fake.jobs() == {"report": 1}
    (script,) = fake.home.glob("runs/sweeps/*/report.sbatch")
    assert "--dependency" not in script.read_text()


@pytest.mark.slow
def test_a_cancelled_sweep_gets_no_report_later(fake: FakeSlurm) -> None:
    fake.set(ROOM="6")
    assert main(GROWING) == 0
    (sweep,) = fake.ledger.sweeps()
    assert waves.read(fake.ledger) == {sweep.sweep_id: []}
    assert commands.main(["cancel", sweep.sweep_id]) == 0
    assert waves.read(fake.ledger) == {}


@pytest.mark.slow
def test_a_growing_sweep_whose_report_is_refused_says_how_it_goes_on(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.set(REFUSES="Invalid qos")
    assert main(GROWING) == 0
    (sweep,) = fake.ledger.sweeps()
    hint = f"The next wave needs it: repeat the launch, or `python -m sweeps retry {sweep.sweep_id}`"
    assert hint in capsys.readouterr().err
    assert fake.jobs()["report"] == 0
    fake.monkeypatch.delenv("REFUSES")
    assert main(GROWING) == 0
    assert fake.jobs() == {"report": 1, **dict.fromkeys(sweep.run_ids, 1)}


# --- cluster.max_parallel


def test_the_arrays_of_a_launch_share_max_parallel() -> None:
    """(jobs at a time, job that has to end first) of each array; their jobs are a, b, c, ..."""
    for most, shares in (
        (None, [(None, ""), (None, "")]),
        (8, [(2, ""), (2, ""), (2, ""), (1, ""), (1, "")]),
        (3, [(1, ""), (1, ""), (1, "")]),
        (2, [(1, ""), (1, ""), (1, "a"), (1, "b"), (1, "c")]),
    ):
        array = Array({"max_parallel": most}, ["x"])
        shared = [sharing(array, number, len(shares), "abcde"[:number]) for number in range(len(shares))]
        assert [(s.max_parallel, "".join(s.after_any)) for s in shared] == shares


@pytest.mark.slow
def test_one_job_at_a_time_is_one_in_three_arrays_too(fake: FakeSlurm) -> None:
    when = "when=cluster.memory_gb=8 if eta=1; cluster.memory_gb=12 if eta=2"
    words = ["eta=0.5,1,2", "seed=0,1", when, "cluster.max_parallel=1", "cluster.report=false"]
    assert main([*BANDIT, *words, *ON_SLURM]) == 0
    texts = [path.read_text() for path in fake.home.glob("runs/submissions/*/array.sbatch")]
    assert [text.count("--array=0-1%1\n") for text in texts] == [1, 1, 1]
    after = [found[1] if (found := re.search(r"--dependency=afterany:(\d+)\n", text)) else "" for text in texts]
    assert sorted(after) == ["", "1", "2"]
