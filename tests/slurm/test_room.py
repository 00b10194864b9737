"""What a launch leaves behind, and what goes on by itself, if the queue has room for a part of its jobs only, or if
sbatch fails although SLURM has accepted the job. SLURM is a program that keeps a list of jobs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.sweeps import Ledger
from rlvr.run import main
from slurm.supervise import Supervisor
from sweeps import commands
from sweeps.slurm import waves
from sweeps.slurm.job_of_stage import StageTask
from sweeps.slurm.launch import Array, sharing, submit_waiting
from sweeps.slurm.submissions import LATER, history, record, with_queue_states
from sweeps.slurm.waves import waiting_for_room
from tests.end_to_end.test_extending import written
from tests.slurm.place import BANDIT
from tests.slurm.test_waves import REFUSED, stand_in

ON_SLURM = ["cluster=slurm", "tracker=none"]
# Runs that start from a base policy, which a job builds first.
STAGED = ["-m", "task.size=5", "task.test_problems=4", "model.batch=4", *ON_SLURM, "cluster.report=false"]
GROWING = [*BANDIT, "divergence=js,hd", "until=decided", "budget=12", *ON_SLURM]  # six runs in its first wave
SBATCH = f"""
import os, pathlib, re, sys
queue = pathlib.Path(os.environ["QUEUE"])
text, lines = pathlib.Path(sys.argv[-1]).read_text(), queue.read_text().splitlines()
array = re.search(r"--array=0-([0-9]+)", text)
indices = range(int(array[1]) + 1) if array else [None]
if len(lines) + len(indices) > int(os.environ.get("ROOM", 1000)):
    sys.exit({REFUSED!r})
if not array and "REFUSES" in os.environ:
    sys.exit(os.environ["REFUSES"])
job = 1 + max((int(line.split("|")[0].split("_")[0]) for line in lines), default=0)
name = re.search("--job-name=(.*)", text)[1]
ids = [f"{{job}}|N/A" if index is None else f"{{job}}_{{index}}|{{index}}" for index in indices]
lines += [f"{{of_task}}|PENDING|||{{name}}" for of_task in ids]
queue.write_text("\\n".join(lines) + "\\n")
sys.exit(os.environ["FAILS"]) if "FAILS" in os.environ else print(job)
"""
TIMEOUT = "Batch job submission failed: Socket timed out on send/recv operation"


@dataclass
class Slurm:
    """The stand-in, and a home for runs beside it."""

    home: Path
    monkeypatch: pytest.MonkeyPatch

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.home)

    def jobs(self) -> Counter[str]:
        """How many jobs in the queue each run has, by its name, and how many build stages and reports."""
        contents = {f"rlvr-{submission.name}": content for submission, content in history(self.ledger)}
        counts = Counter[str]()
        for line in (self.home / "queue").read_text().splitlines():
            _, index, *_, name = line.split("|")
            content = contents[name]
            counts.update([word for word in ("stage", "report") if word in content])
            counts.update([content["runs"][int(index)]] if content["runs"] else [])
        return counts

    def states(self) -> list[tuple[str, str]]:
        ledger = self.ledger
        return [(s.state, s.phase) for s in with_queue_states(ledger, ledger.states(ledger.runs()))]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (tmp_path / "sbatch.py").write_text(SBATCH)
    (tmp_path / "queue").touch()
    sbatch = f'exec {sys.executable} {tmp_path}/sbatch.py "$@"'
    scancel = 'echo "$@" >> "$QUEUE.cancelled"'
    stand_in(tmp_path, monkeypatch, sbatch=sbatch, squeue='cat "$QUEUE"', scancel=scancel, scontrol="", sinfo="")
    stand = Slurm(tmp_path, monkeypatch)
    stand.set(QUEUE=str(tmp_path / "queue"), RLVR_HOME=str(tmp_path), SLURM_JOB_ID="1")
    return stand


# --- sbatch fails, and SLURM has the job


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([*BANDIT, *ON_SLURM, "cluster.report=false"], id="runs"),
        pytest.param(STAGED, id="stage", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_slurm_has_although_sbatch_failed_keeps_its_sweep_and_is_not_doubled(
    words: list[str], slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set(FAILS=TIMEOUT)
    assert main([*words, "seed=0,1"]) == 2
    assert "is kept, because it may have jobs" in capsys.readouterr().err
    assert len(slurm.ledger.sweeps()) == 1
    assert len(runs := slurm.ledger.runs()) == 2
    slurm.monkeypatch.delenv("FAILS")
    assert main([*words, "seed=0,1"]) == 0
    assert slurm.jobs() == {**dict.fromkeys(runs, 1), **({"stage": 1} if words == STAGED else {})}


def test_a_sweep_is_kept_where_slurm_neither_answers_sbatch_nor_squeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch, squeue = f'touch "$RLVR_HOME/down"; echo {TIMEOUT} >&2; exit 1', '[ ! -e "$RLVR_HOME/down" ]'
    stand_in(tmp_path, monkeypatch, sbatch=sbatch, squeue=squeue, scontrol="", sinfo="")
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    assert main([*BANDIT, *ON_SLURM]) == 2
    assert len(Ledger(tmp_path).sweeps()) == len(Ledger(tmp_path).runs()) == 1


# --- room for a stage, and for no more


@pytest.mark.slow
def test_runs_for_whose_stages_there_is_no_room_wait_for_it(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.set(ROOM="1")
    assert main([*STAGED, "model.steps=1,2,3"]) == 0
    assert "0 runs submitted to SLURM, 3 later, by those jobs" in capsys.readouterr().out
    assert slurm.jobs() == {"stage": 1}
    assert slurm.states() == [("queued", LATER)] * 3
    slurm.set(ROOM="1000")
    assert main([*STAGED, "model.steps=1,2,3"]) == 0
    assert slurm.jobs() == {"stage": 3, **dict.fromkeys(slurm.ledger.runs(), 1)}


@pytest.mark.slow
def test_a_launch_with_room_for_nothing_leaves_nothing_behind_beside_a_job_that_submits_nothing(slurm: Slurm) -> None:
    report = record(slurm.ledger, "other", [], {"report": "other"})
    (slurm.home / "queue").write_text(f"1|N/A|PENDING|||rlvr-{report.name}\n")
    slurm.set(ROOM="1")
    assert main([*STAGED, "seed=0,1"]) == main([*BANDIT, *ON_SLURM]) == 2
    assert slurm.ledger.sweeps() == slurm.ledger.runs() == []


@pytest.mark.slow
def test_the_job_of_a_stage_submits_the_runs_that_wait_for_room(slurm: Slurm) -> None:
    slurm.set(ROOM="1")
    assert main([*STAGED, "model.steps=1", "seed=0,1"]) == 0
    assert len(waiting_for_room(slurm.ledger)) == 2
    slurm.set(ROOM="3")
    ((submission, _),) = history(slurm.ledger)
    with Supervisor() as supervisor:
        assert StageTask(submission, supervisor).run() == 0
    assert waiting_for_room(slurm.ledger) == {}
    assert slurm.jobs() == {"stage": 1, **dict.fromkeys(slurm.ledger.runs(), 1)}


@pytest.mark.slow
def test_a_stage_that_fails_is_not_submitted_again_and_the_others_go_on(slurm: Slurm) -> None:
    slurm.set(ROOM="1")
    assert main([*STAGED, "model.steps=1,2", "+model.architecture.hidden_act=nothing"]) == 0
    ((submission, content),) = history(slurm.ledger)
    (other,) = {*slurm.ledger.runs()} - {content["run"]}
    (submission / "stage.out").write_text("KeyError: 'nothing'\n")  # as SLURM writes its log
    slurm.set(ROOM="2")
    with Supervisor() as supervisor:
        assert StageTask(submission, supervisor).run() != 0
    assert slurm.jobs() == {"stage": 2}
    assert [content["run"] for _, content in history(slurm.ledger)] == [other, content["run"]]
    assert waiting_for_room(slurm.ledger).keys() == {other}
    (slurm.home / "queue").write_text("".join((slurm.home / "queue").read_text().splitlines(keepends=True)[1:]))
    shown = with_queue_states(slurm.ledger, slurm.ledger.states([content["run"], other]))
    assert [state.state for state in shown] == ["failed", "queued"]
    assert "KeyError: 'nothing'" in shown[0].message


@pytest.mark.slow
def test_cancel_leaves_a_stage_to_runs_that_wait_for_room(slurm: Slurm) -> None:
    slurm.set(ROOM="1")
    assert main([*STAGED, "seed=0,1"]) == 0
    first, second = slurm.ledger.runs()
    cancelled = slurm.home / "queue.cancelled"
    assert commands.main(["cancel", first]) == 0
    assert waiting_for_room(slurm.ledger).keys() == {second}
    assert not cancelled.exists()
    assert commands.main(["cancel", second]) == 0
    assert cancelled.read_text() == "-Q 1\n"


@pytest.mark.slow
def test_a_job_submits_runs_whose_components_lie_elsewhere_and_their_errors_are_not_its_own(
    slurm: Slurm, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = written(slurm.home / "elsewhere")
    slurm.set(ROOM="1")
    words = ["task=weekdays", "model=table", "rollout.prompts=7", "trainer.updates=1", "seed=0,1,2"]
    assert main(["-m", "--config-dir", str(mine), *words, *ON_SLURM, "cluster.report=false"]) == 0
    assert len(waiting_for_room(slurm.ledger)) == 2
    (slurm.home / "queue").write_text("")
    waves.submit_more(slurm.ledger)
    assert len(waiting_for_room(slurm.ledger)) == 1
    (mine / "weekdays.py").write_text("raise SystemExit(7)\n")
    (slurm.home / "queue").write_text("")
    waves.submit_more(slurm.ledger)
    assert len(waiting_for_room(slurm.ledger)) == 1
    assert "still wait for room in the queue" in capfd.readouterr().out


# --- no room for the report


@pytest.mark.slow
def test_the_report_of_a_growing_sweep_without_room_for_it_is_submitted_by_a_job(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set(ROOM="6")
    assert main(GROWING) == 0
    assert "report later, by those jobs, when the queue has room" in capsys.readouterr().out
    (sweep,) = slurm.ledger.sweeps()
    submit_waiting(slurm.ledger, sweep.sweep_id)
    assert slurm.jobs()["report"] == 0
    (slurm.home / "queue").write_text("".join((slurm.home / "queue").read_text().splitlines(keepends=True)[1:]))
    submit_waiting(slurm.ledger, sweep.sweep_id)
    assert slurm.jobs()["report"] == 1
    assert waves.read(slurm.ledger) == {}
    submit_waiting(slurm.ledger, sweep.sweep_id)
    assert slurm.jobs()["report"] == 1


@pytest.mark.slow
def test_a_report_without_room_until_all_jobs_of_its_sweep_have_ended_is_submitted_all_the_same(slurm: Slurm) -> None:
    slurm.set(ROOM="6")
    assert main(GROWING) == 0
    (slurm.home / "queue").write_text("")
    waves.submit_more(slurm.ledger)  # by a job of another sweep
    assert slurm.jobs() == {"report": 1}
    (script,) = slurm.home.glob("runs/sweeps/*/report.sbatch")
    assert "--dependency" not in script.read_text()


@pytest.mark.slow
def test_a_cancelled_sweep_gets_no_report_later(slurm: Slurm) -> None:
    slurm.set(ROOM="6")
    assert main(GROWING) == 0
    (sweep,) = slurm.ledger.sweeps()
    assert waves.read(slurm.ledger) == {sweep.sweep_id: waves.Waiting([], ship=False)}
    assert commands.main(["cancel", sweep.sweep_id]) == 0
    assert waves.read(slurm.ledger) == {}


@pytest.mark.slow
def test_a_growing_sweep_whose_report_is_refused_says_how_it_goes_on(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set(REFUSES="Invalid qos")
    assert main(GROWING) == 0
    (sweep,) = slurm.ledger.sweeps()
    assert f"The next wave needs it: repeat the launch, or `python -m sweeps retry {sweep.sweep_id}`" in (
        capsys.readouterr().err
    )
    assert slurm.jobs()["report"] == 0
    slurm.monkeypatch.delenv("REFUSES")
    assert main(GROWING) == 0
    assert slurm.jobs() == {"report": 1, **dict.fromkeys(sweep.run_ids, 1)}


# --- cluster.max_parallel


@pytest.mark.parametrize(
    ("most", "shares"),
    [
        (None, [(None, ""), (None, "")]),
        (8, [(2, ""), (2, ""), (2, ""), (1, ""), (1, "")]),
        (3, [(1, ""), (1, ""), (1, "")]),
        (2, [(1, ""), (1, ""), (1, "a"), (1, "b"), (1, "c")]),
    ],
)
def test_the_arrays_of_a_launch_share_max_parallel(most: int | None, shares: list[Any]) -> None:
    """(jobs at a time, job that has to end first) of each array; their jobs are a, b, c, ..."""
    array = Array({"max_parallel": most}, ["x"])
    shared = [sharing(array, number, len(shares), "abcde"[:number]) for number in range(len(shares))]
    assert [(s.max_parallel, "".join(s.after_any)) for s in shared] == shares


@pytest.mark.slow
def test_one_job_at_a_time_is_one_in_three_arrays_too(slurm: Slurm) -> None:
    when = "when=cluster.memory_gb=8 if eta=1; cluster.memory_gb=12 if eta=2"
    words = ["eta=0.5,1,2", "seed=0,1", when, "cluster.max_parallel=1", "cluster.report=false"]
    assert main([*BANDIT, *words, *ON_SLURM]) == 0
    texts = [path.read_text() for path in slurm.home.glob("runs/submissions/*/array.sbatch")]
    assert [text.count("--array=0-1%1\n") for text in texts] == [1, 1, 1]
    after = [found[1] if (found := re.search(r"--dependency=afterany:(\d+)\n", text)) else "" for text in texts]
    assert sorted(after) == ["", "1", "2"]
