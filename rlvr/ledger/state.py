"""How a run stands, as the files of its attempts say, and what their time was worth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import End, last_sign, newest_attempt, read_end
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json
from rlvr.ledger.runs import Unreadable, read_info

SILENT_S = 900.0  # where nothing else tells, a run elsewhere that was not heard of for so long is lost
_LOST = "the process is gone without a word (killed?)"


@dataclass(frozen=True)
class RunState:
    """How a run stands. Times in seconds; what is not known yet is None, 0 or ""."""

    run_id: str
    name: str
    state: State
    attempt: int = 0  # number of the newest one; 0: none yet
    step: int = 0
    steps: int = 0
    phase: str = ""
    accuracy: float | None = None
    cause: str = ""
    message: str = ""
    seconds: float = 0.0  # spent by all attempts together: useful + replayed + wasted
    useful: float = 0.0  # on steps that no attempt before had done
    replayed: float = 0.0  # on steps done again, because the attempt before died after its newest checkpoint
    wasted: float = 0.0  # by attempts that ended without a step
    gpus: int = 0  # of the newest attempt
    started: float | None = None  # unix time, newest attempt
    heartbeat_age: float | None = None  # of a running attempt
    rate: float | None = None  # steps per second of the newest attempt
    eta: float | None = None  # until the last step, at the pace of this attempt
    node: str = ""  # of the newest attempt
    job: str = ""  # of SLURM, newest attempt
    host: str = ""  # of the newest attempt, as its processes call it
    group_id: str = ""  # the same for runs that differ by their seed alone
    arm: str = ""  # their name
    end_time: float | None = None  # unix time, of a run that has ended and said so
    log: Path | None = None

    @property
    def hours(self) -> tuple[float, float, float]:
        """GPU-hours (useful, replayed, wasted); of a run without a GPU, its own hours."""
        share = max(1, self.gpus) / 3600
        return self.useful * share, self.replayed * share, self.wasted * share

    @property
    def ended(self) -> bool:
        return self.state.ended


@dataclass(frozen=True)
class _Try:
    """One attempt, as its files say."""

    path: Path
    job: Mapping[str, Any]
    beat: Mapping[str, Any]
    end: End | None

    @classmethod
    def read(cls, path: Path) -> _Try:
        job, beat = read_json(layout.job(path)) or {}, read_json(layout.heartbeat(path)) or {}
        return cls(path, job, beat if _has_numbers(beat) else {}, read_end(path))

    @property
    def heard(self) -> float | None:
        """When it last gave a sign of life; None: it has given none."""
        return last_sign(self.beat) or None

    @property
    def finished(self) -> bool:
        return self.end is not None and self.end.cause.state is State.FINISHED

    @property
    def seconds(self) -> float:
        """What it said at its end, else the time from its start to its last sign of life."""
        if self.end is not None:
            return self.end.seconds
        started = self.job.get("started")
        return max(0.0, self.heard - started) if started and self.heard else 0.0

    @property
    def did(self) -> tuple[int, int]:
        """(step that it began after, last step that it did); equal before the first one."""
        last, origin = int(self.beat.get("step", 0)), self.beat.get("origin")
        return (int(origin["step"]) - 1, last) if origin else (last, last)

    @property
    def rate(self) -> float | None:
        """Steps per second since the end of its first step: set-up is not part of it. None before two steps."""
        origin: Mapping[str, float] = self.beat.get("origin") or {}
        done, passed = (self.beat.get(key, 0) - origin.get(key, 0) for key in ("step", "time"))
        return done / passed if origin and done > 0 and passed > 0 else None


def _has_numbers(beat: Mapping[str, Any]) -> bool:
    """False of a heartbeat with a wrong bit that is still JSON."""
    numbers = [beat.get(key, 0) for key in ("step", "steps", "time", "alive")]
    if "origin" in beat:
        origin = cast("dict[str, Any]", beat["origin"] if isinstance(beat["origin"], dict) else {})
        numbers += [origin.get("step"), origin.get("time"), *(beat.get(key) for key in ("steps", "time"))]
    return all(isinstance(each, int | float) for each in numbers)


def read(run_dir: Path) -> RunState:
    """How a run stands, from its attempts. A run that is finished stays so, whatever came later."""
    run_id = run_dir.name
    try:
        info = read_info(run_dir)
    except Unreadable as error:
        state, why = (State.UNREADABLE, error.why) if run_dir.is_dir() else (State.MISSING, f"{run_dir} is gone")
        return RunState(run_id, run_id, state, message=why)
    newest = newest_attempt(run_dir)
    if not newest:
        return RunState(run_id, info.name, State.PLANNED, group_id=info.group_id, arm=info.arm)
    tries = [_Try.read(layout.attempt(run_dir, n)) for n in range(1, newest + 1)]
    number = next((n for n, each in enumerate(tries, 1) if each.finished), newest)
    shown, now = tries[number - 1], time.time()
    heard = shown.heard or shown.job.get("started")
    at_work = shown.end is None and is_at_work(run_dir, shown.job, heard, now)
    if shown.end is None and not at_work:  # it may have ended since its files were read
        shown = tries[number - 1] = _Try.read(shown.path)
    if shown.end is not None:
        state, message = shown.end.cause.state, shown.end.message
    else:
        state, message = (State.RUNNING, "") if at_work else (State.LOST, _LOST)
    useful, replayed, wasted = _worth(tries, at_work=at_work)
    return RunState(
        run_id,
        info.name,
        state,
        attempt=number,
        step=shown.did[1],
        steps=int(shown.beat.get("steps", 0)),
        phase=str(shown.beat.get("phase", "")),
        accuracy=shown.beat.get("accuracy"),
        cause=shown.end.cause.value if shown.end else "",
        message=message,
        seconds=useful + replayed + wasted,
        useful=useful,
        replayed=replayed,
        wasted=wasted,
        gpus=int(shown.job.get("gpus") or 0),
        started=shown.job.get("started"),
        heartbeat_age=now - heard if at_work and heard else None,
        rate=shown.rate,
        eta=_eta(shown, now) if at_work else None,
        node=str(shown.job.get("node") or shown.job.get("host") or ""),
        job=str(shown.job.get("slurm_job") or ""),
        host=str(shown.job.get("host") or ""),
        group_id=info.group_id,
        arm=info.arm,
        end_time=shown.end.time if shown.end else None,
        log=layout.log(shown.path),
    )


def is_at_work(run_dir: Path, job: Mapping[str, Any], heard: float | None, now: float) -> bool:
    """Is the process of an attempt that left no end still there? The one test of it.

    job: of job.json, {} if that is missing. heard: unix time of its last sign of life. First the process itself, where
    it was started in this boot and process namespace; then the run's lock, which any process may hold; and where
    neither can be seen from here (another machine, a file system without locks), a heartbeat of the last 15 minutes.
    """
    alive = lock.is_alive(job) if job else None
    path = layout.lock(run_dir)
    held = lock.lock_is_held(path) if path.exists() else None
    if alive is False or held is False:
        return False
    return bool(alive or held or (heard is not None and now - heard < SILENT_S))


def _eta(shown: _Try, now: float) -> float | None:
    """Seconds until the last step at the pace since the first step of this attempt; None before two steps."""
    if shown.rate is None:
        return None
    return max(0.0, (shown.beat["steps"] - shown.beat["step"]) / shown.rate - (now - shown.beat["time"]))


def _worth(tries: Sequence[_Try], *, at_work: bool) -> tuple[float, float, float]:
    """Seconds (useful, replayed, wasted). An attempt's set-up is shared out over its steps.

    at_work: the newest is still running, so that it has no step yet is no waste.
    """
    useful = replayed = wasted = 0.0
    reached = 0
    for number, each in enumerate(tries, 1):
        first, last = each.did
        if last > first:
            again = max(0, min(last, reached) - first) / (last - first)
            replayed += again * each.seconds
            useful += (1 - again) * each.seconds
            reached = max(reached, last)
        elif each.finished or (at_work and number == len(tries)):
            useful += each.seconds
        else:
            wasted += each.seconds
    return useful, replayed, wasted
