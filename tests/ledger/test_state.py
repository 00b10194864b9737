import json
import math
import os
import time
import types
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import Attempt, read_end, record_missing_end
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_json
from rlvr.ledger.state import SILENT_S, is_at_work
from rlvr.ledger.sweeps import Ledger
from slurm.client import QueuedTask
from slurm.supervise import Allocation, Supervisor
from sweeps.__main__ import main
from sweeps.slurm import submissions, waves
from sweeps.slurm.submissions import Queue
from sweeps.slurm.supervised_run import SupervisedRun


def write_attempt(
    ledger: Ledger,
    run_id: str,
    number: int,
    *,
    seconds: float,
    steps: tuple[int, int] | None,
    cause: str = "preempted",
    gpus: int = 0,
) -> None:
    """An attempt that started after the first of `steps` and ended after the last; None: it completed no step."""
    path = ledger.run_dir(run_id) / "attempts" / str(number)
    path.mkdir(parents=True)
    write_json(path / "job.json", {"started": 1000.0, "host": "h", "node": "n7", "gpus": gpus, "slurm_job": "12_3"})
    if steps:
        origin = {"step": steps[0] + 1, "time": 1010.0}
        write_json(path / "heartbeat.json", {"step": steps[1], "steps": 100, "time": 1000 + seconds, "origin": origin})
    write_json(path / "exit.json", {"cause": cause, "seconds": seconds})


def make_run(home: Path, run_id: str = "r") -> Ledger:
    ledger = Ledger(home)
    ledger.create_run(run_id, "{}", {"name": f"lad-{run_id}-s0", "group_id": "g"})
    return ledger


def test_steps_done_again_are_replayed_and_attempts_without_a_step_wasted(tmp_path: Path) -> None:
    """50 steps in 100 s; killed in set-up after 7 s; then from the checkpoint of step 40: 10 of 60 steps are not new.

    useful 100 + 50/60·120 = 200, replayed 10/60·120 = 20, wasted 7."""
    ledger = make_run(tmp_path)
    write_attempt(ledger, "r", 1, seconds=100, steps=(0, 50), cause="preempted")
    write_attempt(ledger, "r", 2, seconds=7, steps=None, cause="node")
    write_attempt(ledger, "r", 3, seconds=120, steps=(40, 100), cause="ok", gpus=4)
    state = ledger.state("r")
    assert (state.useful, state.replayed, state.wasted) == pytest.approx((200, 20, 7))
    assert state.seconds == pytest.approx(227)
    assert state.hours == pytest.approx((4 * 200 / 3600, 4 * 20 / 3600, 4 * 7 / 3600))
    assert (state.node, state.job, state.group_id) == ("n7", "12_3", "g")
    assert state.rate == pytest.approx((100 - 41) / (1120 - 1010))
    ledger = make_run(tmp_path / "killed before it reached a new step")
    write_attempt(ledger, "r", 1, seconds=100, steps=(0, 50))
    write_attempt(ledger, "r", 2, seconds=30, steps=(40, 45))
    state = ledger.state("r")
    assert (state.useful, state.replayed, state.wasted) == pytest.approx((100, 30, 0))


def test_a_requeued_run_is_not_charged_for_time_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started ten hours ago, last sign of life after one hour, then nine hours in the queue of SLURM."""
    monkeypatch.setenv("PATH", "")  # no accounting here
    ledger, now = make_run(tmp_path), time.time()
    path = ledger.run_dir("r") / "attempts/1"
    path.mkdir(parents=True)
    write_json(path / "job.json", {"started": now - 36000})
    beat = {"step": 50, "steps": 100, "phase": "train", "origin": {"step": 1, "time": now - 35000}}
    write_json(path / "heartbeat.json", {**beat, "time": now - 32500, "alive": now - 32400})
    here = Allocation("12", "12", index=0, node=0, restarts=1)
    log = tmp_path / "log"
    SupervisedRun(ledger, "r", {}, Supervisor(), here, log, devices=None, nodes=None)._record_ends_before_restart()
    state = ledger.state("r")
    assert (state.state, state.attempt) == ("preempted", 1)
    assert (state.seconds, state.useful) == pytest.approx((3600, 3600))


def test_starts_of_a_requeued_job_that_opened_no_attempt_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start made steps for 3600 s; the next two took 40 and 25 s, and were stopped in their set-up."""
    (program := tmp_path / "sacct").write_text(
        "#!/bin/sh\nprintf '%s\\n' 'NODE_FAIL|3610' 'REQUEUED|40' 'TIMEOUT|25' 'RUNNING|5'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"SLURMD_NODENAME": "n7", "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}.items():
        monkeypatch.setenv(name, value)
    ledger = make_run(tmp_path)
    write_attempt(ledger, "r", 1, seconds=3600, steps=(0, 50))
    path = ledger.run_dir("r") / "attempts/1"
    write_json(path / "job.json", {"started": 1000.0, "slurm_job": "12", "restarts": 0})
    (path / "exit.json").unlink()
    here, settings = Allocation.here(), {"pack": 1}
    run = SupervisedRun(ledger, "r", settings, Supervisor(), here, tmp_path / "log", devices=None, nodes=None)
    for _ in range(2):  # a second look counts none twice
        run._record_ends_before_restart()
        causes = [end.cause for n in (1, 2, 3) if (end := read_end(ledger.run_dir("r") / f"attempts/{n}")) is not None]
        state = ledger.state("r")
        assert (state.attempt, causes) == (3, [Cause.NODE, Cause.PREEMPTED, Cause.TIME_LIMIT])
        assert (state.useful, state.replayed, state.wasted) == pytest.approx((3600, 0, 65))


def test_a_clock_that_was_set_back_makes_no_time_negative(tmp_path: Path) -> None:
    """Started at 1000, last sign of life at 940 by a clock that was set back by a hundred seconds."""
    ledger = make_run(tmp_path)
    path = ledger.run_dir("r") / "attempts/1"
    path.mkdir(parents=True)
    write_json(path / "job.json", {"started": 1000.0})
    write_json(path / "heartbeat.json", {"step": 1, "steps": 2, "phase": "train", "time": 940.0})
    state = ledger.state("r")
    assert (state.state, state.seconds, state.wasted) == ("lost", 0.0, 0.0)


ALIVE, DEAD, ELSEWHERE = 0, 1, 2  # a process of this machine, one that is gone, one of another machine


AT_WORK = [  # (process, whether the lock is held, whether there was a sign of life, expected)
    (ALIVE, True, False, True),
    (ALIVE, False, True, False),  # a warm worker, which goes on with other runs
    (DEAD, True, True, False),  # a test of the lock, or the next attempt, holds it for a moment
    (ELSEWHERE, True, False, True),
    (ELSEWHERE, False, True, False),
    (ELSEWHERE, None, True, True),  # no lock to test: signs of life decide
    (ELSEWHERE, None, False, False),
]


def test_a_run_is_at_work_unless_its_process_or_its_lock_shows_that_it_is_not(tmp_path: Path) -> None:
    for number, (process, held, is_seen, expected) in enumerate(AT_WORK):
        (run_dir := tmp_path / str(number)).mkdir()
        job = lock.process_record(os.getpid())
        job |= {DEAD: {"process_start": 1}, ELSEWHERE: {"boot": "another"}}.get(process, {})
        now = time.time()
        if held is not None:
            layout.lock(run_dir).touch()
        holding = lock.lock(layout.lock(run_dir)) if held else None
        beat = now - (SILENT_S - 60 if is_seen else SILENT_S + 60)
        assert is_at_work(run_dir, job, beat, now) is expected, AT_WORK[number]
        if holding is not None:
            lock.unlock(holding)


def test_the_time_of_an_attempt_without_a_step_is_wasted_once_a_later_one_is_running(tmp_path: Path) -> None:
    ledger = make_run(tmp_path)
    write_attempt(ledger, "r", 1, seconds=7, steps=None, cause="node")
    with Attempt.open(ledger.run_dir("r")) as attempt:
        started = json.loads((attempt.path / "job.json").read_text())["started"]
        write_json(attempt.path / "heartbeat.json", {"step": 0, "steps": 9, "phase": "start", "time": started + 5})
        state = ledger.state("r")
        attempt.close(Cause.OK)
    assert state.state == "running"
    assert (state.useful, state.replayed, state.wasted) == pytest.approx((5, 0, 7))


def test_a_missing_end_that_was_seen_lasts_until_now(tmp_path: Path) -> None:
    """Its process may have computed until a moment ago, however old its last heartbeat is."""
    path = tmp_path / "attempts/1"
    path.mkdir(parents=True)
    write_json(path / "job.json", {"started": time.time() - 100})
    write_json(path / "heartbeat.json", {"step": 1, "time": time.time() - 50})
    assert record_missing_end(tmp_path, 1, Cause.ERROR, "killed")
    end = read_end(path)
    assert end is not None
    assert end.seconds == pytest.approx(100, abs=5)


BEATS: list[dict[str, Any]] = [
    *({"step": "x"}, {"step": None}, {"step": float("nan")}, {"time": [1]}, {"longest": "1.5"}, {"phase": 4}),
    *({"origin": {"steq": 1, "time": 1.0}}, {"origin": 3}),
]


def test_a_damaged_heartbeat_is_ignored(tmp_path: Path) -> None:
    """For a running run, of whose heartbeat all values are used."""
    ledger = make_run(tmp_path)
    with Attempt.open(ledger.run_dir("r")) as attempt:
        intact = {"step": 7, "steps": 80, "time": 1010.0, "origin": {"step": 1, "time": 1000.0}}
        for beat in BEATS:
            write_json(attempt.path / "heartbeat.json", intact | beat)
            state = ledger.state("r")
            assert (state.state, state.step, state.eta) == ("running", 0, None), beat
        attempt.close("ok")
    assert ledger.state("r").state == "finished"


@pytest.mark.parametrize(
    "damage", [{"gpus": "a"}, {"started": "x"}, {"ranks": [1]}, {"pid": "7"}, {"started": math.inf}]
)
def test_a_damaged_job_is_ignored(tmp_path: Path, damage: dict[str, Any]) -> None:
    """Other runs are shown, too; this one is as if its process had not said where it is."""
    ledger = make_run(tmp_path)
    ledger.record_sweep("s", {"study": "x", "created": 1.0}, [{"run_id": "r", "name": "lad-r-s0"}])
    with Attempt.open(ledger.run_dir("r")) as attempt:
        intact = json.loads((attempt.path / "job.json").read_text())
        write_json(attempt.path / "job.json", intact | damage)
        state = ledger.state("r")
        assert (state.state, state.gpus, state.started) == ("running", 0, None)
        attempt.close("ok")
    assert ledger.state("r").state == "finished"


def test_a_flipped_bit_in_a_key_of_one_run_leaves_status_and_gc_at_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key of each file of a run, in turn, has another last letter: the JSON is valid, and lacks the key."""
    ledger = make_run(tmp_path)
    ledger.create_run("other", "{}", {"name": "other-s0", "group_id": "g"})
    runs = [{"run_id": "r", "name": "lad-r-s0"}, {"run_id": "other", "name": "other-s0"}]
    ledger.record_sweep("s", {"study": "x", "created": 1.0}, runs)
    with Attempt.open(ledger.run_dir("r")) as attempt:
        origin = {"step": 1, "time": 1000.0}
        write_json(attempt.path / "heartbeat.json", {"step": 7, "steps": 80, "time": 1010.0, "origin": origin})
        for path in (attempt.path / "job.json", attempt.path / "heartbeat.json", ledger.run_dir("r") / "run.json"):
            intact = json.loads(path.read_text())
            for key in intact:
                write_json(path, {k if k != key else k[:-1] + chr(ord(k[-1]) ^ 1): v for k, v in intact.items()})
                assert ledger.state("r").state == ("unreadable" if key == "format" else "running"), key
                assert main(["status", "s", "--json", "--home", str(tmp_path)]) == 0
                states = [run["state"] for run in json.loads(capsys.readouterr().out)[0]["runs"]]
                assert (states[1], main(["gc", "--home", str(tmp_path)])) == ("planned", 0)
                capsys.readouterr()
            write_json(path, intact)
        attempt.close("ok")


def test_an_accuracy_of_nan_is_none_and_leaves_status_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bandit's policy that has diverged has the expected reward NaN."""
    ledger = make_run(tmp_path)
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": "r"}])
    with Attempt.open(ledger.run_dir("r")) as attempt:
        attempt.heartbeat(1, 2, "train", accuracy=float("nan"))
        attempt.close("diverged")
    assert main(["status", "s", "--json", "--home", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "NaN" not in printed
    assert json.loads(printed)[0]["runs"][0]["accuracy"] is None


def test_status_of_a_large_sweep_shows_arms_and_its_runs_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path)
    names = [f"lad-js-eta{k // 5}-s{k % 5}" for k in range(105)]
    for k, name in enumerate(names):
        ledger.create_run(f"id{k}", "{}", {"name": name, "arm": name.rpartition("-")[0], "group_id": f"g{k // 5}"})
        write_attempt(ledger, f"id{k}", 1, seconds=3600, steps=(0, 50), cause="error")
    ledger.record_sweep("s", {"study": "big"}, [{"run_id": f"id{k}", "name": n} for k, n in enumerate(names)])
    assert main(["status", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "big s: 105 failed, 105h00m of runs, with start-up" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("lad-js-eta20 ")]
    assert row[:4] == ["lad-js-eta20", "5", "failed", "250/500"]
    assert "and 85 more such runs: --runs shows all" in out
    assert "id104" not in out
    assert main(["status", "--runs", "--home", str(tmp_path)]) == 0
    assert "id104" in capsys.readouterr().out
    assert main(["status", "--json", "--home", str(tmp_path)]) == 0
    (sweep,) = json.loads(capsys.readouterr().out)
    assert (len(sweep["runs"]), len(sweep["arms"]), sweep["total"]["hours_useful"]) == (105, 21, 105.0)


@pytest.mark.slow
def test_status_of_a_thousand_queued_runs_asks_the_scheduler_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs that record their calls; squeue prints what SLURM's would."""
    ledger = Ledger(tmp_path)
    runs = [{"run_id": f"{k:012x}", "name": f"lad-eta{k // 5}-s{k % 5}"} for k in range(1000)]
    for run in runs:
        ledger.create_run(run["run_id"], "{}", run)
    ledger.record_sweep("s", {"study": "big"}, runs)
    token = submissions.record(ledger, "s", [run["run_id"] for run in runs], {"pack": 1}).name
    (tmp_path / "queue").write_text("".join(f"7_{k}|{k}|PENDING|Priority||rlvr-{token}\n" for k in range(1000)))
    for name in ("squeue", "sacct", "scontrol", "sinfo"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/calls\nexec /bin/cat {tmp_path}/queue\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["status", "--json", "--home", str(tmp_path)]) == 0
    (sweep,) = json.loads(capsys.readouterr().out)
    assert [run["phase"] for run in sweep["runs"]] == ["PENDING (Priority)"] * 1000
    assert (tmp_path / "calls").read_text().split() == ["squeue"]


@pytest.mark.parametrize("key", ["created", "runs", "pack", "sweep_id", "format"])
def test_a_damaged_submission_and_damaged_waves_are_left_out(tmp_path: Path, key: str) -> None:
    """Of two submissions: the jobs of the intact one are still found, whether or not SLURM answers."""
    ledger = make_run(tmp_path)
    make_run(tmp_path, "other")
    write_json(submissions.record(ledger, "s", ["other"], {"pack": 1}) / "job.json", {"job": "6"})
    damaged = submissions.record(ledger, "s", ["r"], {"pack": 1})
    content = json.loads((damaged / "submission.json").read_text())
    write_json(damaged / "submission.json", {k if k != key else f"{key}~": v for k, v in content.items()})
    ledger.record_sweep("s", {}, [])
    write_json(ledger.sweep_dir("s") / "waves.json", {"rune": ["r"], "ship": True})
    assert waves.waiting_for_room(ledger) == {}
    names = [path.name for path in damaged.parent.iterdir()]
    tasks = [QueuedTask(f"{n}_0", f"rlvr-{name}", 0, "PENDING", "", "") for n, name in enumerate(names)]
    assert "other" in submissions.by_run(ledger, tasks)
    for queue in (Queue({"other": tasks[0]}, answered=True), Queue({}, answered=False)):
        states = submissions.with_queue_states(ledger, ledger.states(["other"]), queue)
        assert [state.state for state in states] == ["queued"]


def test_a_lost_run_is_shown_with_what_is_wrong_with_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.create_run("a", "{}", {"name": "a"})
    (ledger.run_dir("a") / "attempts/1").mkdir(parents=True)
    disks = {"is read-only now": (os.ST_RDONLY, 100), "is full now": (0, 0), "(killed?)": (0, 1)}
    for said, (flags, free) in disks.items():
        disk = types.SimpleNamespace(f_flag=flags, f_bavail=free, f_blocks=100)
        monkeypatch.setattr(os, "statvfs", lambda _, disk=disk: disk)
        assert ledger.state("a").message.endswith(said)
