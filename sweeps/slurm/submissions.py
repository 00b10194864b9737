"""What was handed to SLURM, on the ledger, and what SLURM says of it now.

runs/submissions/<token>/submission.json   written before sbatch: which run is which task of the array
                         array.sbatch      the script
                         job.json          written after sbatch, or by the first task if the submitter died in between
                         task_<K>.out      what supervisors said
A stage's job has the same, but `stage` instead of runs, stage.out, and end.json if it did not come to stand. That of a
sweep's report says `report`, and keeps script and log with the sweep.

The job's name is `rlvr-<token>`, so the queue alone tells which runs have a job: no number of a job is trusted, SLURM
uses numbers again. A submission whose sbatch never happened has no job in the queue, and stands for nothing.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.lock import lock_is_held
from rlvr.ledger.runs import FORMAT, check_format
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from slurm import client
from slurm.client import Task
from sweeps.slurm.ends import Submission, explained

PREFIX = "rlvr-"
WAITING = (
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "CONFIGURING",
    "SUSPENDED",
    "RESV_DEL_HOLD",
)
UNKNOWN = "SLURM does not answer"
LATER = "until the queue has room"
STAGE = "stage"  # what the script and the log of a stage's job are called


@dataclass(frozen=True)
class Queue:
    """The tasks of this home by run, or that SLURM did not tell (`answered` False: then nothing is known)."""

    tasks: Mapping[str, Task]
    answered: bool = True
    stages: Mapping[str, Task] = field(default_factory=dict[str, Task])  # by the id of the stage that it builds
    later: frozenset[str] = frozenset()  # runs that the jobs in it submit, as soon as there is room


def record(ledger: Ledger, sweep_id: str, run_ids: Sequence[str], settings: Mapping[str, Any]) -> Path:
    """Write down what is about to be submitted. The directory's name is its token."""
    target = layout.submissions(ledger.home) / uuid.uuid4().hex[:12]
    target.mkdir(parents=True)
    content = {"sweep_id": sweep_id, "runs": list(run_ids), "created": time.time(), **settings, "format": FORMAT}
    write_json(layout.submission_info(target), content, private=True)
    return target


@functools.cache
def read(submission: Path) -> Mapping[str, Any]:
    """What its job is to do; it never changes, so a process reads it once. ValueError where it cannot be read."""
    path = layout.submission_info(submission)
    content = read_json(path)
    if content is None:
        raise ValueError(f"{path} cannot be read: can this node see {submission}?")
    return check_format(content, f"submission {submission.name}", path)


def history(ledger: Ledger) -> list[Submission]:
    """Every submission of this home and what it says, newest first."""
    every = layout.submissions(ledger.home).glob("*")
    found = _readable(path for path in every if layout.submission_info(path).exists())
    return sorted(found, key=lambda each: each[1]["created"], reverse=True)


def is_submitted(ledger: Ledger, run_ids: Container[str]) -> bool:
    """Was any of these runs ever handed to SLURM?"""
    return any(
        layout.job(submission).exists() and any(run_id in run_ids for run_id in content["runs"])
        for submission, content in history(ledger)
    )


def _readable(submissions: Iterable[Path]) -> Iterator[Submission]:
    """Without those of other homes, and those that are torn or of another version: their runs say so."""
    for submission in submissions:
        with contextlib.suppress(ValueError):
            yield submission, read(submission)


def job_name(submission: Path) -> str:
    return PREFIX + submission.name


def record_job(submission: Path, job: str) -> None:
    """The number that SLURM gave. Harmless when repeated."""
    if read_json(layout.job(submission)) is None:
        write_json(layout.job(submission), {"job": job, "time": time.time()})


def read_queue(ledger: Ledger, patience_s: float = client.PATIENCE_S) -> Queue:
    """One call of squeue, at most so long; none where nothing was ever submitted from this home."""
    if not layout.submissions(ledger.home).is_dir():
        return Queue({})
    if shutil.which("squeue") is None:
        return Queue({}, answered=False)
    try:
        tasks = client.queue(PREFIX, patience_s)
    except ValueError:
        return Queue({}, answered=False)
    runs = by_run(ledger, tasks)
    later = frozenset(waiting_for_room(ledger)) if runs else frozenset[str]()  # only their jobs submit more
    return Queue(runs, stages=by_word(ledger, tasks, "stage"), later=later)


def by_run(ledger: Ledger, tasks: Iterable[Task]) -> dict[str, Task]:
    """Which run each task is for. Tasks of other homes are left out."""
    found: dict[str, Task] = {}
    for task, submission, content in _ours(ledger, tasks):
        if task.index is not None:
            members = runs_of(content, task.index)
            if len(members) > 1:  # one that has ended for good has no job, though others beside it go on
                members = [run_id for run_id in members if not layout.run_end(submission, run_id).exists()]
            found.update(dict.fromkeys(members, task))
    return found


def runs_of(submission: Mapping[str, Any], index: int) -> list[str]:
    """The runs of one task of an array: one, or as many as a job packs."""
    pack = submission["pack"]
    return [str(run_id) for run_id in submission["runs"][index * pack : (index + 1) * pack]]


def by_word(ledger: Ledger, tasks: Iterable[Task], word: Literal["stage", "report"]) -> dict[str, Task]:
    """The job of each stage, or of each sweep's report."""
    return {str(content[word]): task for task, _, content in _ours(ledger, tasks) if word in content}


def _ours(ledger: Ledger, tasks: Iterable[Task]) -> list[tuple[Task, Path, Mapping[str, Any]]]:
    """The tasks of this home, each with its submission and what that says."""
    named = [(task, layout.submissions(ledger.home) / task.name.removeprefix(PREFIX)) for task in tasks]
    known = dict(_readable({submission for _, submission in named}))
    return [(task, submission, known[submission]) for task, submission in named if submission in known]


def joined(ledger: Ledger, states: Sequence[RunState], queue: Queue | None = None) -> list[RunState]:
    """The ledger's states with what the queue adds: what waits, and what goes on though its process is gone."""
    queue = read_queue(ledger) if queue is None else queue
    if queue.answered:
        known = [_with_task(state, queue.tasks.get(state.run_id)) for state in states]
        here = waiting_here(ledger) if any(s.state is State.PLANNED for s in known) else set[str]()
        known = [_waiting(state, queue, here) for state in known]
        lost = [s.run_id for s in known if s.state is State.PLANNED]
        missing = _missing_stages(ledger, lost, queue) if lost else {}
        known = [_without_stage(state, missing.get(state.run_id)) for state in known]
        return explained(known, functools.partial(history, ledger), queue.tasks)
    ours = {run_id for _, content in history(ledger) for run_id in content["runs"]}
    return [_unknown(state) if state.run_id in ours else state for state in states]


def _with_task(state: RunState, task: Task | None) -> RunState:
    if task is None or state.state in (State.FINISHED, State.RUNNING, State.MISSING, State.UNREADABLE):
        return state
    if task.state in WAITING:
        reason = f" ({task.reason})" if task.reason not in ("", "None") else ""
        return replace(state, state=State.QUEUED, phase=f"{task.state}{reason}")
    if task.state == "COMPLETING":
        return replace(state, phase="COMPLETING")
    return replace(state, state=State.RUNNING, phase=f"{task.state} on {task.node}")


def _unknown(state: RunState) -> RunState:
    """What is not known is not an end."""
    return replace(state, state=State.QUEUED, phase=UNKNOWN) if state.state in (State.PLANNED, State.LOST) else state


def _waiting(state: RunState, queue: Queue, here: Container[str]) -> RunState:
    """A run without an attempt that somebody is to start: a launch on this machine, or jobs in the queue."""
    if state.state is not State.PLANNED:
        return state
    if state.run_id in queue.later:
        return replace(state, state=State.QUEUED, phase=LATER)
    return replace(state, state=State.QUEUED) if state.run_id in here else state


def waiting_here(ledger: Ledger) -> set[str]:
    """Runs of the sweeps that a launch on this machine is at work on."""
    at_work = [
        sweep
        for sweep in ledger.sweeps()
        if any(map(lock_is_held, layout.launch_locks(ledger.sweep_dir(sweep.sweep_id))))
    ]
    return {run_id for sweep in at_work for run_id in sweep.run_ids}


# --- sweeps that are larger than the queue may be


def record_waves(ledger: Ledger, sweep_id: str, run_ids: Sequence[str], *, ship: bool) -> None:
    """Keep which runs are to be submitted when there is room, and whether a report ships; none: that was all."""
    path = layout.waves(ledger.sweep_dir(sweep_id))
    if run_ids:
        write_json(path, {"runs": list(run_ids), "ship": ship})
    else:
        path.unlink(missing_ok=True)


def waves(ledger: Ledger) -> dict[str, Mapping[str, Any]]:
    """What `record_waves` has kept, by sweep."""
    found = {path.name: read_json(layout.waves(path)) for path in layout.sweeps(ledger.home).glob("*")}
    return {sweep_id: content for sweep_id, content in found.items() if content is not None}


def waiting_for_room(ledger: Ledger) -> dict[str, str]:
    """The sweep of each run that is to be submitted when there is room."""
    return {run_id: sweep_id for sweep_id, content in waves(ledger).items() for run_id in content["runs"]}


# --- runs whose stage was not built


def _missing_stages(ledger: Ledger, run_ids: Sequence[str], queue: Queue) -> dict[str, Submission]:
    """Of runs without a job: the submission of the stage that they waited for in vain, and what it says."""
    newest: dict[str, Submission] = {}
    for submission, content in history(ledger):
        if "stage" in content:
            newest.setdefault(content["stage"], (submission, content))
    found: dict[str, Submission] = {}
    for run_id in run_ids:
        for stage in recorded_stages(ledger.run_dir(run_id)) or []:
            if stage in newest and stage not in queue.stages and not (layout.stages(ledger.home) / stage).is_dir():
                found.setdefault(run_id, newest[stage])  # the first: the others wait for it
    return found


def _without_stage(state: RunState, stage: Submission | None) -> RunState:
    if stage is None:
        return state
    path, about = stage
    end = read_json(layout.stage_end(path)) or {
        "cause": "ended",
        "message": "without a word: cancelled, or its node failed",
    }
    text = f"the {about['source']} stage {about['stage']} that it starts from was not built: {end['cause']}: "
    text += f"{end['message']} (the same command, or `python -m sweeps retry`, tries again)"
    log = layout.job_log(path, STAGE)
    return replace(state, state=State.FAILED, cause="stage", message=text, log=log)
