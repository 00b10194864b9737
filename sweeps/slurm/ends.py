"""Ends that no process could write down: SLURM killed all of a job, or it ended before its run began. Its log tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlvr.attempt import Cause
from rlvr.paths import read_json
from sweeps.ledger import Ledger
from sweeps.state import RunState, State

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


def explained(ledger: Ledger, states: Sequence[RunState], waiting: Mapping[str, object]) -> list[RunState]:
    """The states, with the ends of runs that are lost, or that have neither begun nor a job. waiting: have a job."""

    def is_open(state: RunState) -> bool:
        if state.attempt:
            return state.state == "lost" and bool(state.job)
        return state.state == "queued" and state.run_id not in waiting

    if not any(map(is_open, states)):
        return list(states)
    logs = task_logs(ledger)
    return [_named(s, logs[s.run_id]) if is_open(s) and s.run_id in logs else s for s in states]


def task_logs(ledger: Ledger) -> dict[str, Path]:
    """The log of the newest job of each run that SLURM ever started from this home."""
    found: dict[str, Path] = {}
    contents = (
        (path.parent, read_json(path) or {}) for path in (ledger.root / "submissions").glob("*/submission.json")
    )
    for path, content in sorted(contents, key=lambda pair: pair[1].get("created", 0)):
        for number, run_id in enumerate(content.get("runs", [])):
            log = path / f"task_{number // int(content.get('pack', 1))}.out"
            if log.exists():
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
