"""The state of a run, derived from the files of its attempts, and how much of their time was useful."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.ledger import layout, lock
from rlvr.ledger.attempt import (
    End,
    last_heartbeat_time,
    newest_attempt,
    read_end,
    read_heartbeat,
    read_job,
    seconds_of_signs,
)
from rlvr.ledger.cause import State
from rlvr.ledger.runs import Unreadable, read_info

SILENT_S = 900.0  # a run whose process and lock cannot be tested counts as lost after this long without a sign
_LOST = "the process is gone without a word (killed?)"


@dataclass(frozen=True)
class RunState:
    """The state of a run. Times are in seconds; values that are not known yet are None, 0 or ""."""

    run_id: str
    name: str
    state: State
    attempt: int = 0  # number of the attempt that is described, the newest or the one that finished; 0: none yet
    step: int = 0
    steps: int = 0
    phase: str = ""
    accuracy: float | None = None
    first_accuracy: float | None = None  # of the first evaluation, as a rule that of the base policy
    unparsable: float | None = None  # share of the last evaluation's responses; so is the next
    finished_share: float | None = None
    cause: str = ""
    message: str = ""
    seconds: float = 0.0  # total of all attempts: useful + replayed + wasted
    useful: float = 0.0  # on steps that no earlier attempt had done
    replayed: float = 0.0  # on steps done again, because the previous attempt went on after its newest checkpoint
    wasted: float = 0.0  # by attempts that ended before completing a step
    own_gpus: bool = False  # whether SLURM allocated it GPUs that no other run used, in every attempt
    # From here to `host`: of the same attempt.
    gpus: int = 0
    started: float | None = None  # unix time
    heartbeat_age: float | None = None  # while it is running
    rate: float | None = None  # steps per second
    eta: float | None = None  # time until the last step at this rate, while it is running
    node: str = ""  # SLURM's name of the node, else the host
    job: str = ""  # SLURM job id
    host: str = ""  # host name, as its processes see it
    group_id: str = ""  # the same for runs that differ only in their seed
    arm: str = ""  # the name of these runs without the seed
    end_time: float | None = None  # unix time, if the attempt recorded its end
    log: Path | None = None
    code: str = ""  # 12 digits of the code and data of its attempts; `1f…, then 2e…` if they were not the same

    @property
    def hours(self) -> tuple[float, float, float]:
        """GPU-hours (useful, replayed, wasted); for a run without a GPU, hours of its process."""
        hours_per_second = max(1, self.gpus) / 3600
        return self.useful * hours_per_second, self.replayed * hours_per_second, self.wasted * hours_per_second

    @property
    def ended(self) -> bool:
        return self.state.ended


@dataclass(frozen=True)
class _AttemptFiles:
    """The files of one attempt, and what follows from them."""

    path: Path
    job: Mapping[str, Any]
    beat: Mapping[str, Any]
    end: End | None

    @classmethod
    def read(cls, path: Path) -> _AttemptFiles:
        return cls(path, read_job(path), read_heartbeat(path), read_end(path))

    @property
    def last_heartbeat(self) -> float | None:
        """Unix time of its last heartbeat; None if there is none."""
        return last_heartbeat_time(self.beat) or None

    @property
    def finished(self) -> bool:
        return self.end is not None and self.end.cause.state is State.FINISHED

    @property
    def seconds(self) -> float:
        """Its duration as recorded at its end, else the time from its start to its last heartbeat."""
        return self.end.seconds if self.end is not None else seconds_of_signs(self.job, self.beat)

    def score(self, name: str) -> float | None:
        """Of its last evaluation; None also if that is not a number, as a policy's that has diverged: JSON lacks it."""
        score = self.beat.get(name)
        return score if isinstance(score, int | float) and math.isfinite(score) else None

    @property
    def steps_done(self) -> tuple[int, int]:
        """(step that it started after, last step that it completed); equal before its first step is complete."""
        last, origin = int(self.beat.get("step", 0)), self.beat.get("origin")
        return (int(origin["step"]) - 1, last) if origin else (last, last)

    @property
    def alone(self) -> dict[str, Any]:
        """The fields of RunState that this attempt alone determines."""
        end, job, beat = self.end, self.job, self.beat
        return {
            "step": self.steps_done[1],
            "steps": int(beat.get("steps", 0)),
            "phase": str(beat.get("phase", "")),
            "accuracy": self.score("accuracy"),
            "first_accuracy": self.score("first_accuracy"),
            "unparsable": self.score("unparsable"),
            "finished_share": self.score("finished"),
            "cause": end.cause.value if end else "",
            "gpus": int(job.get("gpus") or 0),
            "started": job.get("started"),
            "rate": self.rate,
            "node": str(job.get("node") or job.get("host") or ""),
            "job": str(job.get("slurm_job") or ""),
            "host": str(job.get("host") or ""),
            "end_time": end.time if end else None,
            "log": layout.log(self.path),
        }

    @property
    def rate(self) -> float | None:
        """Steps per second since the end of its first step, so without set-up. None before the end of the second."""
        origin: Mapping[str, float] = self.beat.get("origin") or {}
        num_steps, seconds = (self.beat.get(key, 0) - origin.get(key, 0) for key in ("step", "time"))
        return num_steps / seconds if origin and num_steps > 0 and seconds > 0 else None


def read(run_dir: Path) -> RunState:
    """The state of a run, from its attempts. A run that has finished stays finished, whatever later attempts did."""
    run_id = run_dir.name
    try:
        info = read_info(run_dir)
    except Unreadable as error:
        state, why = (State.UNREADABLE, error.why) if run_dir.is_dir() else (State.MISSING, f"{run_dir} is gone")
        return RunState(run_id, run_id, state, message=why)
    newest = newest_attempt(run_dir)
    if not newest:
        return RunState(run_id, info.name, State.PLANNED, group_id=info.group_id, arm=info.arm)
    attempts = [_AttemptFiles.read(layout.attempt(run_dir, n)) for n in range(1, newest + 1)]
    number = next((n for n, attempt in enumerate(attempts, 1) if attempt.finished), newest)
    shown, now = attempts[number - 1], time.time()
    last_heartbeat = shown.last_heartbeat or shown.job.get("started")
    at_work = shown.end is None and is_at_work(run_dir, shown.job, last_heartbeat, now)
    if shown.end is None and not at_work:  # it may have ended since its files were read
        shown = attempts[number - 1] = _AttemptFiles.read(shown.path)
    if shown.end is not None:
        state, message = shown.end.cause.state, shown.end.message
    else:
        state, message = (State.RUNNING, "") if at_work else (State.LOST, _LOST + _fault_of_disk(run_dir))
    useful, replayed, wasted = _divide_time(attempts, at_work=at_work)
    return RunState(
        run_id,
        info.name,
        state,
        attempt=number,
        message=message,
        seconds=useful + replayed + wasted,
        useful=useful,
        replayed=replayed,
        wasted=wasted,
        own_gpus=all(attempt.job.get("own_gpus") for attempt in attempts),
        heartbeat_age=now - last_heartbeat if at_work and last_heartbeat else None,
        eta=_eta(shown, now) if at_work else None,
        group_id=info.group_id,
        arm=info.arm,
        **shown.alone,
        code=", then ".join(_without_repeats(str(attempt.job.get("code") or "") for attempt in attempts)),
    )


def _fault_of_disk(run_dir: Path) -> str:
    """Why a process can write no end there now; "" if it can."""
    disk = os.statvfs(run_dir)
    if disk.f_flag & os.ST_RDONLY:
        return ": the file system of its files is read-only now"
    return "" if disk.f_bavail or not disk.f_blocks else ": the disk of its files is full now"


def _without_repeats(values: Iterable[str]) -> list[str]:
    """The values that are neither empty nor that of the attempt before."""
    kept: list[str] = []
    for value in values:
        if value and [value] != kept[-1:]:
            kept.append(value)
    return kept


def is_at_work(run_dir: Path, job: Mapping[str, Any], last_heartbeat: float | None, now: float) -> bool:
    """Whether an attempt that recorded no end still has a process. All code uses this test.

    job: the content of job.json, {} if that is missing. last_heartbeat: its unix time. The test uses the
    process itself, if it was started in this boot and process namespace; the run's lock, which any process may hold;
    and if neither can be tested from here (another machine, a file system without locks between hosts), whether there
    was a heartbeat in the last 15 minutes.
    """
    alive = lock.is_alive(job) if job else None
    path = layout.lock(run_dir)
    held = lock.lock_is_held(path) if path.exists() else None
    if held is False and alive is None and layout.weak_locks(layout.home_of_run(run_dir)).exists():
        held = None
    if alive is False or held is False:
        return False
    return bool(alive or held or (last_heartbeat is not None and now - last_heartbeat < SILENT_S))


def _eta(attempt: _AttemptFiles, now: float) -> float | None:
    """Seconds until the last step, at the rate of this attempt; None while that is not known."""
    if attempt.rate is None:
        return None
    beat = attempt.beat
    return max(0.0, (beat["steps"] - beat["step"]) / attempt.rate - (now - beat["time"]))


def _divide_time(attempts: Sequence[_AttemptFiles], *, at_work: bool) -> tuple[float, float, float]:
    """Seconds (useful, replayed, wasted) of all attempts. The set-up of an attempt is divided among its steps.

    at_work: whether the newest attempt is running; if so, its time is not wasted though it has no step yet.
    """
    useful = replayed = wasted = 0.0
    reached = 0
    for number, attempt in enumerate(attempts, 1):
        first, last = attempt.steps_done
        if last > first:
            replayed_share = max(0, min(last, reached) - first) / (last - first)
            replayed += replayed_share * attempt.seconds
            useful += (1 - replayed_share) * attempt.seconds
            reached = max(reached, last)
        elif attempt.finished or (at_work and number == len(attempts)):
            useful += attempt.seconds
        else:
            wasted += attempt.seconds
    return useful, replayed, wasted
