import re
import time
from pathlib import Path

import pytest

from rlvr.ledger.attempt import Attempt, newest_attempt, read_end
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.files import write_json
from sweeps import verdict
from sweeps.watchdog import START, STEPS, Watchdog
from sweeps.worker import new_tag

MINUTES = 0.002  # 0.12 s, in which it looks four times


def silent_for(watchdog: Watchdog, seconds: float) -> bool:
    """Was the run ended within that time? A slow machine looks less often, and then counts less."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if watchdog.finds_hung():
            return True
        time.sleep(0.005)
    return False


def beating(run_dir: Path, **beat: object) -> Attempt:
    run_dir.mkdir(exist_ok=True)
    attempt = Attempt.open(run_dir)
    write_json(attempt.path / "heartbeat.json", {"time": time.time(), "phase": "train", "step": 3, "steps": 9, **beat})
    return attempt


@pytest.mark.slow
def test_a_run_past_its_first_step_is_ended_after_the_patience_and_its_end_has_a_name(tmp_path: Path) -> None:
    """A damaged heartbeat is no progress, as none is, and does not stop the watch."""
    for phase, beat in {"start": {"alive": "10:31", "longest": "long"}, "train": {}}.items():
        attempt = beating(tmp_path / phase, origin={"step": 1, "time": 0.0}, **beat)
        assert silent_for(Watchdog(tmp_path / phase, 0, MINUTES, new_tag()), 30)
        end = read_end(attempt.path)
        assert end is not None
        assert (end.cause, end.cause.goes_on, end.cause.state) == (Cause.HUNG, True, State.PREEMPTED)
        assert f"phase {phase!r}: ended. The stacks of its threads are at the end of" in end.message


def test_a_run_whose_engine_answers_is_not_ended_however_long_its_evaluation_takes(tmp_path: Path) -> None:
    attempt = beating(tmp_path, origin={"step": 1, "time": 0.0}, phase="evaluation")
    watchdog, until = Watchdog(tmp_path, 0, MINUTES, new_tag()), time.monotonic() + 1.0
    while time.monotonic() < until:  # eight times its patience
        beat = {"time": 1.0, "alive": time.time(), "phase": "evaluation", "step": 3, "origin": {"step": 1, "time": 0.0}}
        write_json(attempt.path / "heartbeat.json", beat)
        assert not watchdog.finds_hung()
    assert silent_for(watchdog, 30)  # its answers have stopped


def test_long_steps_the_way_to_the_first_one_and_no_limit_give_a_run_more_time(tmp_path: Path) -> None:
    """Each has more than ten times the patience; what is measured can only be less than the time that passes."""
    beats = {"slow": {"origin": {"step": 1, "time": 0.0}, "longest": 10.0}, "new": {}}
    assert STEPS * 10.0 > START * 60 * MINUTES > 1.4
    for name, beat in beats.items():
        attempt = beating(tmp_path / name, **beat)
        assert not silent_for(Watchdog(tmp_path / name, 0, MINUTES, new_tag()), 0.7)
        assert read_end(attempt.path) is None
    assert not silent_for(Watchdog(tmp_path / "slow", 0, None, new_tag()), 0.3)
    assert not silent_for(Watchdog(tmp_path / "slow", 1, MINUTES, new_tag()), 0.7)  # of an attempt before


def test_a_run_that_never_begins_its_attempt_is_ended_as_hung_in_one_of_its_own(tmp_path: Path) -> None:
    """It has as long as a run has to its first step. The attempt before keeps its end."""
    beating(tmp_path, origin={"step": 1, "time": 0.0}).close(Cause.TIME_LIMIT, "as it was")
    watchdog = Watchdog(tmp_path, 1, MINUTES, new_tag())
    assert not silent_for(watchdog, 0.7)
    assert silent_for(watchdog, 30)
    assert newest_attempt(tmp_path) == 1
    ended = verdict.verdict_of_exit(
        tmp_path, 1, -9, stopping=False, log=tmp_path / "job.out", known=watchdog.verdict(tmp_path / "job.out")
    )
    assert (ended.cause, ended.again) == (Cause.HUNG, True)
    first, second = (read_end(tmp_path / f"attempts/{number}") for number in (1, 2))
    assert first is not None
    assert (first.cause, first.message) == (Cause.TIME_LIMIT, "as it was")
    assert second is not None
    assert second.cause is Cause.HUNG
    assert re.fullmatch(rf"no attempt was begun in \d+ s: ended; see {tmp_path}/job.out", second.message)


def test_a_launch_that_was_suspended_itself_does_not_take_its_runs_to_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour between two looks, as of a laptop that was closed: the run had no time for progress either."""
    attempt = beating(tmp_path, origin={"step": 1, "time": 0.0})
    watchdog, now = Watchdog(tmp_path, 0, 1.0, new_tag()), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for seconds in (10, 3600, 10, 3600):
        now += seconds
        assert not watchdog.finds_hung()
    assert read_end(attempt.path) is None
