"""The launcher with real processes: real signals, real kills, the real ledger. Only the training is left out."""

import contextlib
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import read_json
from rlvr.ledger.sweeps import Ledger
from sweeps import commands, local, verdict
from sweeps import worker as workers
from sweeps.local import run_local
from sweeps.planned import seed_by_seed
from sweeps.progress import Display
from sweeps.slurm.submissions import with_queue_states
from sweeps.verdict import LaunchOutcome
from tests.support.disks import small_disk
from tests.sweeps.launch import WORKER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process life is read from /proc")
ROOT = Path(__file__).parents[2]
SLOW = {"steps": 300, "pause": 0.02}


def plan(home: Path, **acts: str | dict[str, Any]) -> Ledger:
    """A sweep `s` of runs that do what they are told (see obeying_worker.py): a word is their `act`."""
    ledger = Ledger(home)
    for run_id, act in acts.items():
        behaviour = {"act": act} if isinstance(act, str) else act
        config = {"act": "", "steps": 1, "pause": 0.0, "kills": 1, **behaviour}
        ledger.create_run(run_id, json.dumps(config), {"run_id": run_id, "name": f"name-{run_id}"})
    runs = [{"run_id": run_id, "name": run_id, "overrides": [], "index": i} for i, run_id in enumerate(acts)]
    ledger.record_sweep("s", {"study": "test"}, runs)
    return ledger


def launch(ledger: Ledger, **options: Any) -> LaunchOutcome:
    command = [sys.executable, *WORKER, *(["--serve"] if options.get("ranks", 1) == 1 else [])]
    return run_local(ledger, "s", **{"workers": 2, "command": command, **options})


def launch_command(ledger: Ledger, **options: Any) -> list[str]:
    return [sys.executable, "-m", "tests.sweeps.launch", str(ledger.home), "s", json.dumps(options)]


@contextmanager
def launching(ledger: Ledger, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A launch in another process."""
    command = launch_command(ledger, **options)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(claim: Callable[[], object], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not claim():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def attempts(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    """job.json and exit.json of every attempt, as one."""
    attempt_dirs = sorted((ledger.run_dir(run_id) / "attempts").iterdir(), key=lambda path: int(path.name))
    return [(read_json(path / "job.json") or {}) | (read_json(path / "exit.json") or {}) for path in attempt_dirs]


def causes(ledger: Ledger, run_id: str) -> list[str | None]:
    return [attempt.get("cause") for attempt in attempts(ledger, run_id)]


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def running(ledger: Ledger, *run_ids: str) -> bool:
    return all(ledger.state(run_id).step > 0 and ledger.state(run_id).state == "running" for run_id in run_ids)


# --- the pool


def test_two_warm_workers_share_six_runs_and_see_their_share_of_the_machine(tmp_path: Path) -> None:
    ledger = plan(tmp_path, **{run_id: {"pause": 0.1} for run_id in "abcdef"})
    outcome = launch(ledger, threads=3)
    seen = json.loads((ledger.run_dir("a") / "attempts/1/environment.json").read_text())
    wanted = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}
    wanted |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
    assert wanted.items() <= seen.items()
    assert sorted(outcome.finished) == list("abcdef")
    assert {ledger.state(run_id).state for run_id in "abcdef"} == {"finished"}
    assert (len({attempts(ledger, run_id)[0]["pid"] for run_id in "abcdef"}), outcome.exit_code) == (2, 0)
    assert sum(outcome.busy_s) >= 0.6
    assert outcome.seconds >= max(outcome.busy_s)


def test_runs_begin_in_the_order_of_the_sweep_or_as_they_are_given(tmp_path: Path) -> None:
    ledger = plan(tmp_path / "whole", **dict.fromkeys("cab", ""))
    assert launch(ledger, workers=1).finished == ["c", "a", "b"]
    ledger = plan(tmp_path / "part", **dict.fromkeys("cab", ""))
    assert launch(ledger, workers=1, run_ids=["b", "elsewhere", "c"]).finished == ["b", "c"]


@pytest.mark.slow
def test_a_launch_starts_every_arm_with_one_seed_before_any_with_the_next(tmp_path: Path) -> None:
    """Two arms of seeds 3 and 1, as typed, really launched; runs that cannot be read come last here."""
    configs = {f"{arm}{seed}": {"seed": seed} for arm in "ab" for seed in (3, 1)}
    assert seed_by_seed([*configs, "unreadable"], configs) == ["a3", "b3", "a1", "b1", "unreadable"]
    tiny = "task=bandit model=table rollout.prompts=1 rollout.dynamic_sampling=none trainer.updates=1 steps=1"
    words = [*tiny.split(), "loss=grpo,rloo", "seed=3,1", "cluster.workers=1", "tracker=none", "cluster.report=false"]
    command = [sys.executable, "-m", "rlvr.run", "-m", *words]
    subprocess.run(command, env={**os.environ, "RLVR_HOME": str(tmp_path)}, check=True, capture_output=True)
    ledger = Ledger(tmp_path)
    (sweep,) = ledger.sweeps()
    assert [run["name"][:4] + run["name"][-2:] for run in sweep.runs] == ["grpos3", "grpos1", "rloos3", "rloos1"]
    begun = sorted(ledger.states(sweep.run_ids), key=lambda state: state.started or 0)
    assert [state.name[:4] + state.name[-2:] for state in begun] == ["grpos3", "rloos3", "grpos1", "rloos1"]


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="", b="")
    launch(ledger)
    again = launch(plan(tmp_path, a="", b="", c=""))
    assert (sorted(again.skipped), again.finished) == (["a", "b"], ["c"])
    assert ([len(attempts(ledger, run_id)) for run_id in "abc"], launch(ledger).exit_code) == ([1, 1, 1], 0)


# --- failures


# act → (state in the outcome, its message there, causes of the attempts); with two retries.
FATES: dict[str, tuple[str, str, list[str]]] = {
    "": ("finished", "", ["ok"]),
    "noise": ("finished", "", ["ok"]),
    "kill": ("finished", "", ["error", "ok"]),
    "always_killed": ("failed", "killed by signal 9 (SIGKILL", ["error"] * 3),
    "error": ("failed", "as told", ["error"]),
    "user_error": ("failed", "as told", ["user_error"]),
    "diverged": ("diverged", "as told", ["diverged"]),
    "preempted": ("preempted", "", ["preempted"] * 3),
    "time_limit": ("preempted", "", ["time_limit"] * 3),
    "leave": ("failed", "ended with code 3", ["error"]),  # before there is an attempt
    "vanish": ("failed", "no such directory", []),
    "old": ("unreadable", "made by another version of rlvr", []),
    "gone": ("missing", "", []),
}


@pytest.mark.slow
def test_every_end_of_a_run_is_named_and_stops_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts: dict[str, Any] = {fate or "fine": fate if fate not in ("old", "gone") else "" for fate in FATES}
    ledger = plan(tmp_path, **acts | {"always_killed": {"act": "kill", "kills": 9}})
    (ledger.run_dir("old") / "run.json").write_text('{"name": "name-old"}')
    shutil.rmtree(ledger.run_dir("gone"))
    outcome = launch(ledger, retries=2, workers=1)  # of two, either takes a run's next attempt: other process ids
    out = capsys.readouterr().out
    for fate, (state, message, of_attempts) in FATES.items():
        run_id = fate or "fine"
        listed = {"finished": outcome.finished, "preempted": outcome.preempted}.get(state, outcome.failed)
        assert run_id in listed, fate
        assert outcome.states.get(run_id, state) == state, fate
        assert message in outcome.messages.get(run_id, ""), fate
        there = attempts(ledger, run_id) if (ledger.run_dir(run_id) / "attempts").exists() else []
        assert [attempt["cause"] for attempt in there] == of_attempts, fate
        assert len({attempt["pid"] for attempt in there}) == (len(there) if "kill" in fate else bool(there)), fate
        if state in ("failed", "diverged") and of_attempts:
            assert f"{state.upper()} name-{run_id} ({run_id}): {of_attempts[-1]}: " in out, fate
    assert outcome.exit_code == 1
    for count in ("3 of 13 runs finished", "1 diverged", "5 failed", "2 preempted", "1 missing", "1 unreadable"):
        assert count in out.splitlines()[-1]
    assert "not an answer" in "".join(path.read_text() for path in ledger.sweep_dir("s").glob("worker-*.log"))


def test_runs_of_several_ranks_fail_and_are_repeated_alike(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="kill", bad="error", c="", doomed={"act": "kill", "kills": 9})
    outcome = launch(ledger, ranks=2)
    assert (sorted(outcome.finished), sorted(outcome.failed), outcome.exit_code) == (["a", "c"], ["bad", "doomed"], 1)
    ends = {"a": ["error", "ok"], "bad": ["error"], "c": ["ok"], "doomed": ["error", "error"]}  # one retry
    assert {run_id: causes(ledger, run_id) for run_id in ends} == ends


def test_workers_that_cannot_start_are_given_up_with_the_last_line_of_their_log(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="", b="")
    outcome = launch(ledger, command=[sys.executable, "-c", "raise SystemExit('no torch here')"])
    assert (sorted(outcome.failed), outcome.exit_code) == (["a", "b"], 1)
    assert "no torch here" in outcome.messages["a"]
    assert ledger.state("a").state == "planned"


def test_workers_that_are_ready_carry_out_the_queue_when_no_further_one_can_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = plan(tmp_path, **{run_id: {"pause": 0.3} for run_id in "ab"}, c="kill", d="")
    worker = shlex.join([sys.executable, *WORKER, "--serve"])
    script = f"mkdir {tmp_path}/alone || exit 1; {worker}; rmdir {tmp_path}/alone"  # no room for two
    outcome = launch(ledger, command=["sh", "-c", script])
    assert (sorted(outcome.finished), outcome.exit_code) == (list("abcd"), 0)
    assert "no further worker could start" in capsys.readouterr().out


# --- being told to stop


@pytest.mark.real
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_lets_runs_save_and_the_same_command_goes_on(tmp_path: Path, number: int, ranks: int) -> None:
    ledger = plan(tmp_path, a=SLOW, b=SLOW, c={**SLOW, "steps": 40})
    with launching(ledger, workers=2, ranks=ranks) as parent:
        wait_for(lambda: running(ledger, "a", "b"))
        parent.send_signal(number)
        out, _ = parent.communicate(timeout=20)
    outcome = json.loads(out.splitlines()[-1])
    assert (sorted(outcome["preempted"]), outcome["queued"], parent.returncode) == (["a", "b"], ["c"], 130)
    assert (outcome["finished"], ledger.state("c").state) == ([], "planned")
    assert "2 interrupted, 1 planned: run the same command again" in out
    check_saved(ledger, "a", "b")
    if number == signal.SIGINT:
        assert sorted(launch(ledger, ranks=ranks).finished) == ["a", "b", "c"]
        for run_id in "ab":
            taken = (ledger.run_dir(run_id) / "steps.txt").read_text().split()
            assert [int(step) for step in taken] == list(range(1, SLOW["steps"] + 1))  # none twice, none left out


def check_saved(ledger: Ledger, *run_ids: str) -> None:
    for state in ledger.states(run_ids):
        step = int((ledger.run_dir(state.run_id) / "step.txt").read_text())
        assert (state.state, state.step) == ("preempted", step)


@pytest.mark.real
@pytest.mark.parametrize("is_terminal", [False, True])
def test_runs_save_although_the_launch_can_print_no_more(tmp_path: Path, *, is_terminal: bool) -> None:
    ledger = plan(tmp_path, a=SLOW, b=SLOW)
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = launch_command(ledger, workers=2)
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    try:
        wait_for(lambda: running(ledger, "a", "b"))
        os.close(ours)  # the terminal, or the reader of the pipe, is gone
        process.send_signal(signal.SIGHUP)
        process.wait(20)
    finally:
        process.kill()
        process.wait()
    check_saved(ledger, "a", "b")


@pytest.mark.real
def test_runs_save_at_an_error_of_the_launch(tmp_path: Path) -> None:
    """The directory of a queued run cannot be read, as on a file server that fails for a moment."""
    ledger = plan(tmp_path, a=SLOW, b={**SLOW, "steps": 40}, c=SLOW)
    with launching(ledger, workers=2) as parent:
        wait_for(lambda: running(ledger, "a", "b"))
        (ledger.run_dir("c") / "attempts").symlink_to("attempts")  # a circle: an error of the system, unlike no folder
        assert parent.wait(20) == 1
    check_saved(ledger, "a")
    assert ledger.state("b").state == "finished"


def test_further_errors_while_runs_save_are_endured_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = plan(tmp_path, a="")
    monkeypatch.setattr(local, "POLL_S", 0.0)
    for num_failing, num_turns in ((5, 6), (10**9, local.FAILED_TURNS)):
        dispatcher = local.Dispatcher(ledger, ["a"], [], Display(ledger, ["a"]), 0, "tag", None)
        turns: list[int] = []

        def turn(dispatcher: local.Dispatcher = dispatcher, turns: list[int] = turns, limit: int = num_failing) -> None:
            turns.append(dispatcher.num_signals)
            if len(turns) <= limit:
                raise OSError("stale file handle")
            dispatcher.stopping = True

        monkeypatch.setattr(dispatcher, "turn", turn)
        with pytest.raises(OSError, match="the first"), dispatcher.at_work():
            raise OSError("the first")
        assert turns == [1] * num_turns


SIGNALLED = "Process {} of this machine was signalled to stop: runs finish their step and save.\n"


@pytest.mark.real
@pytest.mark.usefixtures("no_slurm")
def test_cancel_stops_every_launch_of_a_sweep_and_one_that_outlasts_the_first_is_still_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = plan(tmp_path, **dict.fromkeys("abcd", SLOW))
    with launching(ledger, workers=1, run_ids=["a"]) as first:
        wait_for(lambda: running(ledger, "a"))
        with launching(ledger, workers=1, run_ids=["b", "d"]) as second:
            wait_for(lambda: running(ledger, "b"))
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=20)
            assert ledger.waiting_here() == {"b", "d"}
            with launching(ledger, workers=1, run_ids=["c", "d"]) as third:
                wait_for(lambda: running(ledger, "c"))
                assert commands.main(["cancel", "--home", str(tmp_path), "b"]) == 2  # it is one of two of its launch
                error = capsys.readouterr().err
                assert "no launch on this machine works on run b alone" in error
                assert "`python -m sweeps cancel s` ends all runs of its launch." in error
                assert commands.main(["cancel", "--home", str(tmp_path), "s"]) == 0
                third.communicate(timeout=20)
            second.communicate(timeout=20)
    lines = capsys.readouterr().out.splitlines(keepends=True)
    assert sorted(lines) == sorted(SIGNALLED.format(launch.pid) for launch in (second, third))
    assert [ledger.state(run_id).state for run_id in "abcd"] == ["preempted", "preempted", "preempted", "planned"]
    assert ledger.waiting_here() == set()
    assert commands.main(["cancel", "--home", str(tmp_path), "s"]) == 0  # the locks that they signed are free
    ended = "Nothing of sweep s is running (1 planned, 3 preempted): nothing to cancel.\n"
    assert capsys.readouterr().out == ended


@pytest.mark.real
@pytest.mark.usefixtures("no_slurm")
def test_a_launch_of_one_run_is_cancelled_by_its_name_and_its_neighbour_is_no_longer_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `retry RUN` of a sweep of several."""
    ledger = plan(tmp_path, a=SLOW, b="")
    cancel = ["cancel", "--home", str(tmp_path)]
    with launching(ledger, workers=1, run_ids=["a"]) as parent:
        wait_for(lambda: running(ledger, "a"))
        assert [s.state for s in with_queue_states(ledger, ledger.states("ab"))] == ["running", "planned"]
        assert commands.main([*cancel, "b"]) == 0
        assert capsys.readouterr().out == "Nothing of run b is running (1 planned): nothing to cancel.\n"
        assert commands.main([*cancel, "a"]) == 0
        assert capsys.readouterr().out == SIGNALLED.format(parent.pid)
        parent.communicate(timeout=20)
    assert ledger.state("a").state == "preempted"


@pytest.mark.real
def test_what_a_launch_that_is_stopping_has_dropped_is_not_queued(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a={"steps": 100, "pause": 30}, b="")
    with launching(ledger, workers=1) as parent:
        wait_for(lambda: ledger.state("a").state == "running")
        assert with_queue_states(ledger, ledger.states("b"))[0].state == "queued"
        parent.send_signal(signal.SIGINT)
        wait_for(lambda: with_queue_states(ledger, ledger.states("b"))[0].state == "planned")
        assert ledger.state("a").state == "running"  # it saves when its step is done
        assert local.stop(ledger, "s") == [parent.pid]  # and is killed by a second signal
        parent.communicate(timeout=20)


@pytest.mark.real
def test_two_signals_kill_at_once(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a={"steps": 100, "pause": 30}, b={"steps": 100, "pause": 0.05})
    with launching(ledger, workers=2) as parent:
        wait_for(lambda: running(ledger, "b") and ledger.state("a").state == "running")
        parent.send_signal(signal.SIGINT)
        wait_for(lambda: ledger.state("b").state == "preempted")
        began = time.monotonic()
        parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert "before it could save" in ledger.state("a").message
    assert ledger.state("a").state == "preempted"


@pytest.mark.real
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path, ranks: int) -> None:
    ledger = plan(tmp_path, a={"act": "child", "steps": 2000, "pause": 0.01}, b={"steps": 2000, "pause": 0.01})
    with launching(ledger, workers=2, ranks=ranks) as parent:
        wait_for(lambda: running(ledger, "a", "b"))
        pids = [attempts(ledger, run_id)[0]["pid"] for run_id in "ab"]
        pids.append(int((ledger.run_dir("a") / "child.txt").read_text()))
        assert all(lock.process_start(pid) is not None for pid in pids)
        assert os.getsid(pids[0]) != os.getsid(parent.pid)  # Ctrl-C of a terminal does not reach a worker
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: all(lock.process_start(pid) is None for pid in pids), patience_s=5)
    assert {ledger.state(run_id).state for run_id in "ab"} == {"lost"}


# --- two launchers


@pytest.mark.real
def test_two_launchers_of_one_sweep_run_everything_once(tmp_path: Path) -> None:
    run_ids = list("abcdefgh")
    ledger = plan(tmp_path, **{run_id: {"steps": 3, "pause": 0.1} for run_id in run_ids})
    with launching(ledger, workers=2) as one, launching(ledger, workers=2) as other:
        outs = [launcher.communicate(timeout=60)[0] for launcher in (one, other)]
    outcomes = [json.loads(out.splitlines()[-1]) for out in outs]
    assert [one.returncode, other.returncode] == [0, 0]
    assert all(sorted(outcome["finished"] + outcome["skipped"]) == run_ids for outcome in outcomes)
    assert [len(attempts(ledger, run_id)) for run_id in run_ids] == [1] * len(run_ids)


@pytest.mark.real
def test_a_run_that_another_process_holds_is_waited_for_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys, time; from rlvr.ledger.attempt import Attempt; a = Attempt.open(sys.argv[1]); "
    code += "print(flush=True); time.sleep(1); a.close(sys.argv[2])"
    for cause, ends in (("preempted", ["preempted", "ok"]), ("ok", ["ok"])):
        ledger = plan(tmp_path / cause, a="", b="")
        words = [sys.executable, "-c", code, str(ledger.run_dir("a")), cause]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            outcome = launch(ledger)
        assert "waiting   name-a: another process is at work on it" in capsys.readouterr().out
        assert sorted([*outcome.finished, *outcome.skipped]) == ["a", "b"]
        assert causes(ledger, "a") == ends


def test_an_end_without_an_answer_does_not_touch_an_attempt_of_somebody_else(tmp_path: Path) -> None:
    # The worker is killed before its attempt while another process takes the run: that attempt must stay open.
    ledger = plan(tmp_path, a="")
    with Attempt.open(ledger.run_dir("a")) as other:
        end = verdict.verdict_of_exit(ledger.run_dir("a"), 0, -9, stopping=False, log=tmp_path)
        assert end.cause is Cause.BUSY
        assert not (other.path / "exit.json").exists()
        other.close(Cause.OK)


def test_the_end_of_an_attempt_is_not_that_of_the_process_after_it(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="")
    Attempt.open(ledger.run_dir("a")).close(Cause.PREEMPTED)
    for before, status, again in ((1, 3, False), (2, -9, True)):  # only what was killed may succeed another time
        end = verdict.verdict_of_exit(ledger.run_dir("a"), before, status, stopping=False, log=tmp_path)
        assert (end.cause, end.again) == (Cause.ERROR, again)
    assert causes(ledger, "a") == ["preempted", "error", "error"]


def test_a_run_out_of_gpu_memory_is_tried_with_three_smaller_budgets(tmp_path: Path) -> None:
    run_dir = plan(tmp_path, a="").run_dir("a")
    again: list[bool] = []
    for before in range(4):
        Attempt.open(run_dir).close(Cause.GPU_OOM)
        again.append(verdict.verdict_of_exit(run_dir, before, 5, stopping=False, log=tmp_path).again)
    assert again == [True, True, True, False]


@pytest.mark.slow
def test_a_run_that_hangs_before_its_attempt_is_ended_and_tried_again(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="hang")
    with Attempt.open(ledger.run_dir("a")) as before:
        before.close(Cause.PREEMPTED)
    assert launch(ledger, retries=1, hung_min=0.005).finished == ["a"]  # 12 times 0.3 s
    assert causes(ledger, "a") == ["preempted", "hung", "ok"]


def test_a_launch_that_holds_two_locks_is_signalled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal would kill its runs."""
    ledger, signalled = plan(tmp_path, a=""), list[int]()
    monkeypatch.setattr(os, "kill", lambda pid, _: signalled.append(pid))
    directory, busy = ledger.sweep_dir("s"), RuntimeError()
    with (
        lock.held_lock(layout.launch_lock(directory, 0), 1.0, busy) as launching,
        lock.held_lock(layout.deciding_lock(directory), 1.0, busy) as deciding,
    ):
        for held in (launching, deciding):
            lock.write_holder(held)
        assert local.stop(ledger, "s") == signalled == [os.getpid()]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """With one run, whose second attempt is open, and no room left."""
    with small_disk(tmp_path / "disk", "64k") as path:
        ledger = plan(path, a="")
        Attempt.open(ledger.run_dir("a")).close(Cause.PREEMPTED)
        with Attempt.open(ledger.run_dir("a")):
            with contextlib.suppress(OSError), (path / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            yield path
            (path / "filler").unlink()


@pytest.mark.parametrize("before", [1, 2])
def test_on_a_full_disk_an_end_keeps_its_cause_and_is_said(
    before: int, full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its attempt (the second), or in one made for that (a third)."""
    run_dir = Ledger(full_disk).run_dir("a")
    (run_dir / "lock").unlink()  # its process is dead
    known = verdict.RunEnd(Cause.HOST_OOM, "out of memory: raise cluster.memory_gb")
    assert verdict.verdict_of_exit(run_dir, before, -9, stopping=False, log=full_disk, known=known) == known
    message = "its end, host_oom, could not be written: No space left on device. out of memory: raise cluster.memory_gb"
    assert capsys.readouterr().err == f"{run_dir}: {message}\n"
    assert not list(run_dir.glob("attempts/[23]/exit.json"))


# --- the shipper and the guard


def test_the_shipper_makes_its_last_pass_when_the_runs_have_ended_and_one_that_fails_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write('last pass'); raise SystemExit(7)"
    ledger = plan(tmp_path, a="", b="")
    outcome = launch(ledger, shipper=[sys.executable, "-c", code, str(tmp_path / "shipped")])
    assert (tmp_path / "shipped").read_text() == "last pass"
    assert (sorted(outcome.finished), outcome.exit_code) == (["a", "b"], 0)
    assert "ended with code 7" in (out := capsys.readouterr().out)
    assert "python -m sweeps sync" in out


@pytest.mark.real
def test_a_shipper_that_never_ends_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.worker.SHIPPER_S", 0.3)
    ledger = plan(tmp_path, a="")
    began = time.monotonic()
    assert launch(ledger, shipper=["sleep", "600"]).exit_code == 0
    assert time.monotonic() - began < 10


@pytest.mark.real
def test_a_signal_while_metrics_are_shipped_is_told_of_a_sweep_whose_runs_have_all_finished(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="")
    code = "import sys, time; sys.stdin.read(); open(sys.argv[1], 'w').close(); time.sleep(600)"
    with launching(ledger, shipper=[sys.executable, "-c", code, str(tmp_path / "shipping")]) as parent:
        wait_for((tmp_path / "shipping").exists)
        parent.send_signal(signal.SIGTERM)
        out, _ = parent.communicate(timeout=30)
    outcome = json.loads(out.splitlines()[-1])
    assert (outcome["finished"], outcome["interrupted"], outcome["signalled"]) == (["a"], False, True)
    assert parent.returncode == 0


def test_what_a_worker_started_is_killed_after_its_end(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    tag, log = workers.new_tag(), tmp_path / "log"
    worker = workers.RunWorker([sys.executable, "-c", code], threads=1, tag=tag, log=log, warm=False)
    worker.start()
    wait_for(lambda: worker.poll() is not None)
    child = int(log.read_text())
    assert lock.process_start(child) is not None
    worker.clean_up()
    assert lock.process_start(child) is None


def test_the_end_of_one_worker_is_not_that_of_the_tenth_after_it(tmp_path: Path) -> None:
    sleep = ["sleep", "600"]
    staff = workers.pool([None] * 11, threads=1, ranks=2, tag=workers.new_tag(), logs=tmp_path, command=sleep)
    for worker in (staff[1], staff[10]):
        worker.start()
    workers.kill_tagged(staff[1].tag)
    wait_for(lambda: staff[1].poll() is not None)
    assert staff[10].poll() is None
    for worker in (staff[1], staff[10]):
        worker.clean_up()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("stop", [False, True])
def test_several_ranks_are_started_and_stopped_together(tmp_path: Path, stop: bool) -> None:
    ledger = plan(tmp_path, a={"steps": 3000 if stop else 3, "pause": 0.05}, b="error" if not stop else "")
    ranks = [*workers.ranks_command(2)[:-2], *WORKER]
    with launching(ledger, workers=1, ranks=2, command=ranks) as parent:
        wait_for(lambda: ledger.state("a").step > 0, 60)
        if stop:
            parent.send_signal(signal.SIGINT)
        parent.communicate(timeout=100)
    states = [ledger.state(run_id).state for run_id in "ab"]
    assert (states, parent.returncode) == ((["preempted", "planned"], 130) if stop else (["finished", "failed"], 1))
