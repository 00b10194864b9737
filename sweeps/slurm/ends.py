"""Translates ends that only SLURM knows into causes and states of the ledger: no process of the run could record them.

Either SLURM killed the whole job, which its log shows; or SLURM started the job again, which accounting shows; or the
job ended before its run began.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.state import RunState

TAIL = 4096  # bytes at the end of a log that are searched
# Text that slurmstepd writes when it kills a job's process and supervisor together. The first that matches decides.
KILLED: tuple[tuple[str, Cause, str], ...] = (
    ("exceeded memory limit", Cause.HOST_OOM, "out of memory: raise cluster.memory_gb"),
    ("oom_kill event", Cause.HOST_OOM, "out of memory: raise cluster.memory_gb"),
    ("DUE TO TIME LIMIT", Cause.TIME_LIMIT, "killed at its time limit before it could save"),
    ("DUE TO NODE FAILURE", Cause.NODE, "its node failed"),
    ("DUE TO PREEMPTION", Cause.PREEMPTED, "preempted before it could save"),
)
CANCELLED = "CANCELLED AT"
# What the script of a job prints if its program could not begin (slurm/submit.py), and how srun's own lines begin.
LEFT_NODE, STOPPED, OF_SRUN = "ended on node ", "so it did on each of ", ("srun: ", "slurmstepd: error: *** ")
# State in accounting of a job that SLURM started again -> cause; any other state was a preemption.
STARTED_AGAIN: Mapping[str, Cause] = {
    "NODE_FAIL": Cause.NODE,
    "BOOT_FAIL": Cause.NODE,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "OUT_OF_MEMORY": Cause.HOST_OOM,
}

Submission = tuple[Path, Mapping[str, Any]]  # its folder, and the content of its submission.json


def with_ends_from_slurm(
    states: Sequence[RunState], history: Callable[[], Sequence[Submission]], waiting: Mapping[str, object]
) -> list[RunState]:
    """The states, with the ends of runs that are lost, or that have neither begun nor a job.

    history: returns every submission, newest first; called only if there is such a run. waiting: runs with a job.
    """

    def has_unknown_end(state: RunState) -> bool:
        if state.attempt:
            return state.state is State.LOST and bool(state.job)
        return state.state is State.PLANNED and state.run_id not in waiting

    if not any(map(has_unknown_end, states)):
        return list(states)
    logs = task_logs(history())
    return [_with_end_from_log(s, logs[s.run_id]) if has_unknown_end(s) and s.run_id in logs else s for s in states]


def task_logs(history: Sequence[Submission]) -> dict[str, Path]:
    """The log of the newest job of each run that SLURM has ever started. history: newest first."""
    logs: dict[str, Path] = {}
    for submission, content in history:
        for number, run_id in enumerate(content["runs"]):
            log = layout.task_log(submission, number // content["pack"])
            if run_id not in logs and log.exists():
                logs[run_id] = log
    return logs


def _with_end_from_log(state: RunState, log: Path) -> RunState:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        tail = file.read().decode(errors="replace")
    for text, cause, message in KILLED:
        if text in tail:
            return _ended(state, cause, f"{message}; see {log}", log)
    if state.attempt or not tail.strip():
        return state
    if CANCELLED in tail:
        return _ended(state, Cause.PREEMPTED, "cancelled before it began", log)
    said, where, after = tail.rpartition(LEFT_NODE)
    lines = [line for line in (said if where else tail).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(OF_SRUN)] or lines  # srun speaks last, of the exit code
    node = f" on node {after.split()[0]}" if where else ""
    stopped = "; " + after.splitlines()[1] if STOPPED in after else ""
    return _ended(state, Cause.ERROR, f"its job ended{node} before the run began: {told[-1]}{stopped}", log)


def _ended(state: RunState, cause: Cause, message: str, log: Path) -> RunState:
    return replace(state, state=cause.state, cause=cause.value, message=message, log=log)
