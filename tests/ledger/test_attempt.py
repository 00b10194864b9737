import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlvr.ledger import attempt as attempts
from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import (
    ALONE,
    Attempt,
    Busy,
    StopFlag,
    Stopped,
    last_heartbeat_time,
    newest_attempt,
    num_gpu_ooms,
    prune_reason,
    read_end,
    read_rank_end,
    record_missing_end,
    request_prune,
    write_rank_end,
)
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_json
from rlvr.ledger.state import is_at_work
from rlvr.ledger.sweeps import Ledger

OPEN = "import sys, time; from rlvr.ledger.attempt import Attempt; a = Attempt.open(sys.argv[1]); "
HOLD = OPEN + "print('held', flush=True); "


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def hold_elsewhere(run_dir: Path, then: str = "time.sleep(60)") -> subprocess.Popen[str]:
    """Another process that opens an attempt and keeps it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD + then, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_attempts_are_numbered_from_one_and_record_how_they_ended(tmp_path: Path) -> None:
    with Attempt.open(tmp_path) as first:
        assert first.close(Cause.ERROR, "no luck") == 1
    with Attempt.open(tmp_path, ranks=2) as second:
        assert second.close("ok") == 0
    assert (first.number, second.number) == (1, 2)
    verdict = read(tmp_path / "attempts/1/exit.json")
    assert {k: verdict[k] for k in ("cause", "code", "message")} == {"cause": "error", "code": 1, "message": "no luck"}
    job = read(tmp_path / "attempts/2/job.json")
    assert (job["attempt"], job["pid"], job["ranks"]) == (2, os.getpid(), 2)


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({"SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "0,1", ALONE: "1"}, True),
        ({"SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "0,1", ALONE: "0"}, False),
        ({"SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "", ALONE: "1"}, False),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, False),
    ],
)
def test_gpus_are_a_runs_own_where_slurm_allocated_them_to_a_job_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], own: bool
) -> None:
    for name in ("SLURMD_NODENAME", ALONE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Attempt.open(tmp_path) as attempt:
        attempt.close(Cause.PREEMPTED)
    assert read(tmp_path / "attempts/1/job.json").get("own_gpus", False) == own
    ledger = Ledger(tmp_path / "home")
    ledger.create_run("r", "{}", {"name": "lad-s0", "group_id": "g"})
    for number in (1, 2):
        (layout.attempt(ledger.run_dir("r"), number)).mkdir(parents=True)
        job = read(tmp_path / "attempts/1/job.json") if number == 1 else {"own_gpus": True}
        layout.job(layout.attempt(ledger.run_dir("r"), number)).write_text(json.dumps(job))
    assert ledger.state("r").own_gpus == own  # of all its attempts


def test_a_held_run_is_busy_and_names_its_holder(tmp_path: Path) -> None:
    holder = hold_elsewhere(tmp_path)
    try:
        with pytest.raises(Busy, match=rf"process {holder.pid} on .*\(attempt 1\)"):
            Attempt.open(tmp_path)
        assert newest_attempt(tmp_path) == 1
    finally:
        holder.kill()
        holder.wait()
    with Attempt.open(tmp_path) as mine:  # the kernel released the lock
        mine.close(Cause.OK)
    assert mine.number == 2


def test_a_finished_run_is_not_opened_again(tmp_path: Path) -> None:
    Attempt.open(tmp_path).close(Cause.OK)
    for _ in range(2):  # a rejected opening releases the lock
        with pytest.raises(Busy, match=r"finished already \(attempt 1\)"):
            Attempt.open(tmp_path)
    assert newest_attempt(tmp_path) == 1


def test_a_forked_child_does_not_keep_the_run_locked(tmp_path: Path) -> None:
    # The child prints its own id: by then it has closed its copy of the lock.
    holder = hold_elsewhere(tmp_path, "import os; os.fork() == 0 and print(os.getpid(), flush=True); time.sleep(60)")
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert lock.process_start(child) is not None
        assert lock.lock_is_held(tmp_path / "lock") is False
        Attempt.open(tmp_path).close(Cause.OK)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_test_of_the_lock_delays_an_opening_but_does_not_fail_it(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as `lock_is_held` does for an instant
    look = threading.Timer(0.2, os.close, [fd])
    look.start()
    Attempt.open(tmp_path).close(Cause.OK)
    look.join()


def test_the_lease_ends_with_a_newer_attempt_a_deleted_run_or_the_end(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in "abcd"]
    for run_dir in runs:
        run_dir.mkdir()
    newer, deleted, anew, closed = (Attempt.open(run_dir) for run_dir in runs)
    assert all(attempt.holds_lease() for attempt in (newer, deleted, anew, closed))
    (runs[0] / "attempts/2").mkdir()  # as another node does after it got the lock
    for run_dir in runs[1:3]:
        shutil.rmtree(run_dir)
    runs[2].mkdir()
    second = Attempt.open(runs[2])
    assert (second.number, second.holds_lease()) == (1, True)  # begun anew under the same number
    closed.close(Cause.OK)
    assert not any(attempt.holds_lease() for attempt in (newer, deleted, anew, closed))
    second.close(Cause.OK)
    newer.close(Cause.OK)  # a zombie cannot finish the run
    assert read(runs[0] / "attempts/1/exit.json")["cause"] == "busy"


def test_two_hosts_that_see_neither_locks_nor_new_files_of_each_other_do_not_share_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host has the number already, which the listing here does not show yet."""
    with Attempt.open(tmp_path) as elsewhere:
        (tmp_path / "lock").unlink()
        monkeypatch.setattr(attempts, "newest_attempt", lambda _: 0)
        before = read(elsewhere.path / "job.json")
        with pytest.raises(Busy, match="is held by"):
            Attempt.open(tmp_path)
        assert read(elsewhere.path / "job.json") == before


def test_a_run_at_work_on_another_host_is_busy_where_its_lock_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats change while this host looks; a heartbeat that does not is of a process that is gone."""
    monkeypatch.setattr(attempts, "WATCH_S", 0.2)
    run_dir = tmp_path / "runs" / "a"
    first = run_dir / "attempts" / "1"
    first.mkdir(parents=True)
    write_json(first / "job.json", {"host": "elsewhere", "started": time.time()})
    (run_dir / "lock").touch()
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.01):
            write_json(first / "heartbeat.json", {"step": 1, "time": time.time(), "phase": "train"}, durable=False)

    (elsewhere := threading.Thread(target=beat)).start()
    while not (first / "heartbeat.json").exists():
        time.sleep(0.01)
    before = is_at_work(run_dir, read(first / "job.json"), time.time(), time.time())
    with pytest.raises(Busy, match="run a is held by another process"):
        Attempt.open(run_dir)
    assert (tmp_path / "runs" / "weak-locks").exists()
    assert (before, is_at_work(run_dir, read(first / "job.json"), time.time(), time.time())) == (False, True)
    ended.set()
    elsewhere.join()
    assert Attempt.open(run_dir).number == 2


def test_heartbeats_are_throttled_except_for_a_change_of_phase_and_the_last(tmp_path: Path) -> None:
    attempt = Attempt.open(tmp_path)
    beat = attempt.path / "heartbeat.json"
    attempt.heartbeat(0, 9, "start", accuracy=0.25)
    attempt.heartbeat(1, 9, "start")
    assert read(beat)["step"] == 0
    attempt.heartbeat(2, 9, "train")
    assert (read(beat)["step"], read(beat)["phase"], read(beat)["accuracy"]) == (2, "train", 0.25)
    attempt.heartbeat(3, 9, "train", accuracy=0.5)
    assert read(beat)["step"] == 2
    attempt.close(Cause.PREEMPTED)
    assert (read(beat)["step"], read(beat)["accuracy"]) == (3, 0.5)


def test_a_file_server_that_fails_for_a_moment_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with Attempt.open(tmp_path) as attempt:
        beat = attempt.path / "heartbeat.json"
        attempt.heartbeat(1, 9, "train")
        for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC):
            with monkeypatch.context() as patch:
                patch.setattr("rlvr.ledger.attempt.write_json", failing)
                attempt.heartbeat(2, 9, f"error {number}")
        assert read(beat)["step"] == 1
        attempt.heartbeat(3, 9, "evaluation")
        assert read(beat)["step"] == 3
        number = errno.ENOENT  # the directory of the attempt is gone
        monkeypatch.setattr("rlvr.ledger.attempt.write_json", failing)
        with pytest.raises(FileNotFoundError):
            attempt.heartbeat(4, 9, "train")
        monkeypatch.undo()
        attempt.close(Cause.OK)


def test_the_longest_step_is_measured_by_a_clock_that_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit for a hang is a multiple of the longest step."""
    with Attempt.open(tmp_path) as attempt:
        for step, clock in enumerate((1e9, 1e9 + 7200, 1e9 - 7200, 1e9)):
            monkeypatch.setattr("time.time", lambda clock=clock: clock)
            attempt.heartbeat(step, 9, f"phase {step}")
    assert 0 < read(attempt.path / "heartbeat.json")["longest"] < 60


def test_signs_of_life_from_other_threads_do_not_change_the_rate(tmp_path: Path) -> None:
    """The rate is measured by `time`, the end of a step; answers of an engine come at any time in between."""
    with Attempt.open(tmp_path) as attempt:
        attempt.heartbeat(1, 9, "evaluation")
        before = read(attempt.path / "heartbeat.json")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: attempt.alive(), range(100)))
        assert read(attempt.path / "heartbeat.json") == before  # written at most once a second
        attempt.close(Cause.PREEMPTED)
    beat = read(attempt.path / "heartbeat.json")
    assert (beat["time"], beat["step"], beat["phase"]) == (before["time"], 1, "evaluation")
    assert last_heartbeat_time(beat) == beat["alive"] > before["time"] == last_heartbeat_time(before)


def test_a_new_attempt_knows_the_last_accuracy_and_the_first(tmp_path: Path) -> None:
    for accuracy in (0.5, 0.25, None):
        with Attempt.open(tmp_path) as attempt:
            attempt.heartbeat(1, 9, "train", accuracy=accuracy)
            attempt.close(Cause.PREEMPTED)
    beat = read(tmp_path / "attempts/3/heartbeat.json")
    assert (beat["accuracy"], beat["first_accuracy"]) == (0.25, 0.5)


def test_an_exception_is_an_error_or_its_cause_ctrl_c_a_preemption_and_no_close_an_error(tmp_path: Path) -> None:
    class Collapsed(ArithmeticError):
        cause = Cause.DIVERGED

    for error in (RuntimeError("boom"), KeyboardInterrupt(), Collapsed()):
        with pytest.raises(type(error)), Attempt.open(tmp_path):
            raise error
    with Attempt.open(tmp_path):
        pass
    ends = [read(tmp_path / f"attempts/{n}/exit.json") for n in (1, 2, 3, 4)]
    assert [end["cause"] for end in ends] == ["error", "preempted", "diverged", "error"]
    assert ends[0]["message"] == "RuntimeError: boom"
    attempt = Attempt.open(tmp_path)
    assert attempt.close(Cause.DIVERGED) == attempt.close(Cause.OK) == 4  # the first recorded end is kept
    assert not record_missing_end(tmp_path, 5, Cause.ERROR, "killed")
    assert read(tmp_path / "attempts/5/exit.json")["cause"] == "diverged"


def test_a_stop_signal_sets_the_flag_and_its_cause() -> None:
    causes = {signal.SIGTERM: "preempted", signal.SIGINT: "preempted", signal.SIGUSR2: "time_limit"}
    for number, cause in causes.items():
        before = signal.getsignal(number)
        with StopFlag() as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop
            assert (stop.received, stop.cause.value, stop.cause.code) == (number, cause, 75)
            if number == signal.SIGINT:
                with pytest.raises(KeyboardInterrupt):  # by the second one
                    os.kill(os.getpid(), number)
        assert signal.getsignal(number) == before


def test_a_request_to_prune_is_for_the_newest_attempt_only(tmp_path: Path) -> None:
    request_prune(tmp_path, "too early")
    assert list(tmp_path.iterdir()) == []
    with Attempt.open(tmp_path) as first:
        request_prune(tmp_path, "worse than the median")
        request_prune(tmp_path, "another reason")
        assert prune_reason(first.path) == "worse than the median"
        first.close("pruned")
    with Attempt.open(tmp_path) as second:
        assert prune_reason(second.path) == ""
        second.close("ok")


def test_the_record_of_the_lowest_rank_counts_for_the_attempt(tmp_path: Path) -> None:
    with Attempt.open(tmp_path) as attempt:
        assert read_rank_end(tmp_path, 1) is None
        for rank, cause in ((10, Cause.ERROR), (2, Cause.GPU_OOM)):
            write_rank_end(tmp_path, rank, cause, "why")
        assert read_rank_end(tmp_path, 1) == (Cause.GPU_OOM, "rank 2: why")
        attempt.close("gpu_oom")
    assert num_gpu_ooms(tmp_path) == 1


def test_a_damaged_record_of_a_rank_is_an_error(tmp_path: Path) -> None:
    damaged = {'{"cauce": "gpu_oom", "message": "why"}': (Cause.ERROR, "why")}
    damaged |= {'{"cause": "gpu_ooo", "message": "why"}': (Cause.ERROR, "why")}
    damaged |= {'{"cause": "gpu_oom", "messagg": "why"}': (Cause.GPU_OOM, "")}
    with Attempt.open(tmp_path) as attempt:
        for content, end in damaged.items():
            (attempt.path / "rank-2.json").write_text(content)
            assert read_rank_end(tmp_path, 1) == end, content
        (attempt.path / "job.json").write_text("{}")
        with pytest.raises(Busy, match="held by another process"):
            Attempt.open(tmp_path)
        attempt.close("ok")


def test_an_interruptible_part_is_abandoned_at_a_signal_and_others_learn_how_late_they_are() -> None:
    with StopFlag(signal.SIGUSR1) as stop:
        with stop.interruptible():
            pass
        with pytest.raises(Stopped, match="SIGUSR1"), stop.interruptible():
            signal.raise_signal(signal.SIGUSR1)
        assert stop.cause is Cause.PREEMPTED
        with pytest.raises(Stopped), stop.interruptible():  # the signal came earlier
            pytest.fail("the body was entered")
    with StopFlag(signal.SIGUSR1) as stop:
        earlier = time.monotonic() - 100
        assert not stop.overdue(0, began=earlier)
        signal.raise_signal(signal.SIGUSR1)
        assert stop
        assert stop.overdue(0, began=earlier)
        assert not stop.overdue(60, began=earlier)  # the signal came just now
        stop._received_at = earlier
        assert stop.overdue(60, began=earlier)
        assert not stop.overdue(60, began=time.monotonic())  # the part began after the signal


def test_a_damaged_value_in_the_record_of_an_end_costs_this_value_alone(tmp_path: Path) -> None:
    """As after an edit by hand. `status` and `gc` read the ends of all runs, and must not end with one of them."""
    intact = {"cause": "gpu_oom", "seconds": 3, "message": "why"}
    no_number = [{"seconds": "x"}, {"seconds": [1]}, {"seconds": float("nan")}]
    unknown = [{"cause": ["ok"]}, {"cause": "struck by lightning"}]
    for damaged in (*no_number, *unknown, {"message": None}):
        (tmp_path / "exit.json").write_text(json.dumps({**intact, **damaged}))
        end = read_end(tmp_path)
        assert end is not None, damaged
        assert end.cause is (Cause.ERROR if damaged in unknown else Cause.GPU_OOM), damaged
        assert end.seconds == (0.0 if "seconds" in damaged else 3.0), damaged
        assert end.message == ("" if "message" in damaged else "why"), damaged


def test_a_closed_terminal_stops_a_run_that_can_save_unless_it_was_started_by_nohup() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, stops in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            with StopFlag() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
            assert (bool(stop), signal.getsignal(signal.SIGHUP)) == (stops, handler)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.cause is Cause.PREEMPTED
