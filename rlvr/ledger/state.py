"""How a run stands, told from the files of its attempts, and what their time was worth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr.ledger import lock
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.files import read_json

State = Literal["queued", "running", "finished", "diverged", "failed", "preempted", "pruned", "lost"]
SILENT_S = 900.0  # where locks tell nothing, a run elsewhere that was not heard of for so long is lost
_LOST = "the process is gone without a word (killed?)"


@dataclass(frozen=True)
class RunState:
    """How a run stands. Times in seconds; what nobody has said yet is None, 0 or ""."""

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
    group_id: str = ""  # the same for runs that differ by their seed alone
    log: Path | None = None

    @property
    def hours(self) -> tuple[float, float, float]:
        """GPU-hours (useful, replayed, wasted); of a run without a GPU, its own hours."""
        share = max(1, self.gpus) / 3600
        return self.useful * share, self.replayed * share, self.wasted * share

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class _Try:
    """One attempt, as its files tell it."""

    path: Path
    job: Mapping[str, Any]
    beat: Mapping[str, Any]
    exit: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path) -> _Try:
        job, beat = read_json(path / "job.json") or {}, read_json(path / "heartbeat.json") or {}
        return cls(path, job, beat, read_json(path / "exit.json"))

    @property
    def finished(self) -> bool:
        return self.exit is not None and self.exit.get("cause") == "ok"

    @property
    def seconds(self) -> float:
        """What it said at its end, else the time from its start to its last sign of life."""
        if self.exit is not None:
            return float(self.exit.get("seconds") or 0)
        started, heard = self.job.get("started"), self.beat.get("time")
        return max(0.0, heard - started) if started and heard else 0.0

    @property
    def did(self) -> tuple[int, int]:
        """(step that it began after, last step that it did); equal before the first one."""
        last, origin = int(self.beat.get("step", 0)), self.beat.get("origin")
        return (int(origin["step"]) - 1, last) if origin else (last, last)

    @property
    def rate(self) -> float | None:
        """Steps per second since the end of its first step: set-up is not part of it. None before two steps."""
        origin = self.beat.get("origin") or {}
        done, passed = (self.beat.get(key, 0) - origin.get(key, 0) for key in ("step", "time"))
        return done / passed if origin and done > 0 and passed > 0 else None


def read(run_dir: Path, run_id: str) -> RunState:
    """How a run stands, from its attempts. A run that is finished stays so, whatever came later."""
    info = read_json(run_dir / "run.json") or {}
    name, group = str(info.get("name") or run_id), str(info.get("group_id") or "")
    newest = newest_attempt(run_dir)
    if not newest:
        return RunState(run_id, name, "queued", group_id=group)
    tries = [_Try.read(run_dir / "attempts" / str(n)) for n in range(1, newest + 1)]
    number = next((n for n, each in enumerate(tries, 1) if each.finished), newest)
    shown, now = tries[number - 1], time.time()
    heard = shown.beat.get("time", shown.job.get("started"))
    end, state = shown.exit or {}, _state(run_dir, shown, heard, now)
    useful, replayed, wasted = _worth(tries, at_work=state == "running")
    return RunState(
        run_id,
        name,
        state,
        group_id=group,
        attempt=number,
        step=shown.did[1],
        steps=int(shown.beat.get("steps", 0)),
        phase=str(shown.beat.get("phase", "")),
        accuracy=shown.beat.get("accuracy"),
        cause=str(end.get("cause") or ""),
        message=str(end.get("message") or "") if shown.exit else _LOST if state == "lost" else "",
        seconds=useful + replayed + wasted,
        useful=useful,
        replayed=replayed,
        wasted=wasted,
        gpus=int(shown.job.get("gpus") or 0),
        started=shown.job.get("started"),
        heartbeat_age=now - heard if state == "running" and heard else None,
        rate=shown.rate,
        eta=_eta(shown, now) if state == "running" else None,
        node=str(shown.job.get("node") or shown.job.get("host") or ""),
        job=str(shown.job.get("slurm_job") or ""),
        log=shown.path / "log.txt",
    )


def _state(run_dir: Path, shown: _Try, heard: float | None, now: float) -> State:
    if shown.exit is None:
        return "running" if _is_running(run_dir, shown.job, heard, now) else "lost"
    cause = shown.exit.get("cause")
    if cause == "ok":
        return "finished"
    if cause in ("diverged", "pruned"):
        return cause
    return "preempted" if cause in ("preempted", "time_limit") else "failed"


def _is_running(run_dir: Path, job: Mapping[str, Any], heard: float | None, now: float) -> bool:
    """Of an attempt that left no exit.json: is its process still at it?"""
    alive = lock.is_alive(job) if job else None
    held = lock.lock_is_held(run_dir / "lock")
    if alive is False or held is False:
        return False
    # Neither the process nor the lock can be seen from here: believe a fresh heartbeat.
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
