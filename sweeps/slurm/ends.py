"""Ends that no process could write down: SLURM killed all of a job, or it ended before its run began. Its log tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.ledger.attempt import Cause
from rlvr.ledger.state import RunState, State

TAIL = 4096  # bytes
# What slurmstepd writes when it kills a job's process and supervisor together. The first that fits counts.
KILLED: tuple[tuple[str, State, Cause, str], ...] = (
    ("exceeded memory limit", "failed", Cause.HOST_OOM, "out of memory: raise cluster.memory_gb"),
    ("oom_kill event", "failed", Cause.HOST_OOM, "out of memory: raise cluster.memory_gb"),
    ("DUE TO TIME LIMIT", "preempted", Cause.TIME_LIMIT, "killed at its time limit before it could save"),
    ("DUE TO NODE FAILURE", "preempted", Cause.NODE, "its node failed"),
    ("DUE TO PREEMPTION", "preempted", Cause.PREEMPTED, "preempted before it could save"),
)
CANCELLED = "CANCELLED AT"


Submission = tuple[Path, Mapping[str, Any]]  # its folder, and what it says


def explained(
    states: Sequence[RunState], history: Callable[[], Sequence[Submission]], waiting: Mapping[str, object]
) -> list[RunState]:
    """The states, with the ends of runs that are lost, or that have neither begun nor a job.

    history: every submission, newest first; asked only where there is such a run. waiting: have a job.
    """

    def is_open(state: RunState) -> bool:
        if state.attempt:
            return state.state == "lost" and bool(state.job)
        return state.state == "queued" and state.run_id not in waiting

    if not any(map(is_open, states)):
        return list(states)
    logs = task_logs(history())
    return [_named(s, logs[s.run_id]) if is_open(s) and s.run_id in logs else s for s in states]


def task_logs(history: Sequence[Submission]) -> dict[str, Path]:
    """The log of the newest job of each run that SLURM ever started. history: newest first."""
    found: dict[str, Path] = {}
    for submission, content in history:
        for number, run_id in enumerate(content.get("runs", [])):
            log = submission / f"task_{number // int(content.get('pack', 1))}.out"
            if run_id not in found and log.exists():
                found[run_id] = log
    return found


def _named(state: RunState, log: Path) -> RunState:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        words = file.read().decode(errors="replace")
    for text, becomes, cause, message in KILLED:
        if text in words:
            return replace(state, state=becomes, cause=cause.value, message=f"{message}; see {log}", log=log)
    if state.attempt or not words.strip():
        return state
    if CANCELLED in words:
        return replace(
            state, state="preempted", cause=Cause.PREEMPTED.value, message="cancelled before it began", log=log
        )
    message = f"its job ended before the run began: {words.strip().splitlines()[-1]}"
    return replace(state, state="failed", cause=Cause.ERROR.value, message=message, log=log)
