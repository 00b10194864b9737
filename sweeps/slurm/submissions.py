"""Submissions to SLURM: how they are recorded in the ledger, and the state of their jobs in the queue.

runs/submissions/<token>/submission.json   written before sbatch: which run is which task of the array
                         array.sbatch      the script
                         job.json          written after sbatch, or by the first task if the submitter was killed before
                         task_<K>.out      the log of task K
For a stage's job there are the same files, but with `stage` instead of runs, stage.out, and end.json if the stage could
not be built. For a sweep's report there is `report`; its script and log are in the sweep's directory.

The job's name ends with `rlvr-<token>`, so that the queue alone determines which runs have a job; before that it names
the sweep and the arm, for people. Job numbers are not used for this, because SLURM reuses them, but for jobs of the
last minutes, which a site's cached squeue may lack. A submission whose sbatch was never called has no job in the queue,
and no effect.
"""

import contextlib
import functools
import re
import shutil
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlvr.config import imports
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, remove, write_json, write_text
from rlvr.ledger.lock import lock_is_held
from rlvr.ledger.runs import FORMAT, Unreadable, check_format, read_private
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, Sweep, grows
from slurm import client
from slurm.client import QueuedTask
from slurm.submit import QueueFull, Resources, script, submit_script
from sweeps.slurm import waves
from sweeps.slurm.ends import Submission, with_ends_from_slurm

MARK = "rlvr-"  # before the token in the name of a job
LABEL = 40  # characters of the sweep's name in it, and of the arm's
FRESH_S = 300.0  # a job that is not older may be missing in the answer of squeue
WAITING = (
    *("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING", "SUSPENDED"),
    "RESV_DEL_HOLD",
)
UNKNOWN = "SLURM does not answer"
LATER = "until the queue has room"


@dataclass(frozen=True)
class Queue:
    """The tasks in SLURM's queue that belong to this home. If `answered` is False nothing is known of them."""

    tasks: Mapping[str, QueuedTask]  # by run id
    answered: bool = True
    stages: Mapping[str, QueuedTask] = field(
        default_factory=dict[str, QueuedTask]
    )  # by the id of the stage that the job builds
    later: frozenset[str] = frozenset()  # runs that jobs in the queue will submit as soon as there is room
    reports: frozenset[str] = frozenset()  # sweeps whose job at the end is in the queue: it may submit a next wave


def record(ledger: Ledger, sweep_id: str, run_ids: Sequence[str], settings: Mapping[str, Any]) -> Path:
    """Write the record of a submission that is about to be made. Returns its directory, whose name is its token."""
    target = layout.submissions(ledger.home) / uuid.uuid4().hex[:12]
    target.mkdir(parents=True)
    content = {"sweep_id": sweep_id, "runs": list(run_ids), "created": time.time(), **settings, "format": FORMAT}
    write_json(layout.submission_info(target), content, private=True)
    return target


def send(
    ledger: Ledger,
    sweep_id: str,
    kind: Literal["array", "stage", "report"],
    about: Mapping[str, Any],
    resources: Resources,
    *,
    held: int,
    run_ids: Sequence[str] = (),
    folder: Path | None = None,
    **placement: Any,
) -> str:
    """Submit a job: write its record, write its script, call sbatch, record the job's number. In this order, so that a
    submitter which is killed in between neither loses a job nor submits one twice. Returns the number.

    kind: of the job, and the name of its script. about: content of the record beside the runs. folder: of script and
    log, which the job's command gets; None: that of the record. held: the submitter's lock.
    placement: `count`, ... of `script`.

    If the queue has no room (QueueFull), no job belongs to the record, and it is removed.
    """
    target = record(ledger, sweep_id, run_ids, about)
    folder = folder or target
    python_path = f"PYTHONPATH={imports.child_environment()['PYTHONPATH']}"  # the submitter's
    module = f"sweeps.slurm.job_of_{'runs' if kind == 'array' else kind}"
    command = ["env", python_path, *imports.python_command("-m", module, str(folder))]
    log = (layout.task_log(folder, "%a") if kind == "array" else layout.job_log(folder, kind)).name
    name = job_name(target, *_labels(ledger, sweep_id, kind, run_ids))
    bad_nodes = layout.bad_nodes(target)
    text = script(command, resources, name=name, folder=folder, log=log, bad_nodes=bad_nodes, **placement)
    path = layout.script(folder, kind)
    write_text(path, text, private=True)
    try:
        job = submit_script(path, resources, keep_open=[held])
    except QueueFull:
        remove(target)
        raise
    record_job(target, job)
    return job


@functools.cache
def read(submission: Path) -> Mapping[str, Any]:
    """The content of submission.json. It never changes, so a process reads it once. ValueError if it cannot be read."""
    path, what = layout.submission_info(submission), f"submission {submission.name}"
    content = read_private(path, what)
    if content is None:
        raise ValueError(f"{path} cannot be read: can this node see {submission}?")
    check_format(content, what, path)
    needed = ("created", "runs", "pack") if content.get("runs") else ("created", "runs")
    if missing := [key for key in needed if key not in content]:
        raise Unreadable(what, f"{path} is damaged: it has no {', '.join(missing)}. Repeat the launch.")
    return content


def history(ledger: Ledger) -> list[Submission]:
    """Every submission of this home with its content, newest first."""
    paths = layout.submissions(ledger.home).glob("*")
    submissions = _readable(path for path in paths if layout.submission_info(path).exists())

    def created(submission: Submission) -> float:
        _, content = submission
        return content["created"]

    return sorted(submissions, key=created, reverse=True)


def may_have_jobs(ledger: Ledger, run_ids: Container[str]) -> bool:
    """Whether SLURM has accepted a job of these runs, or has one of a stage for them in its queue, or does not say.

    The queue is asked because SLURM may have accepted a job whose sbatch ended with an error, such as a timeout.
    """
    tokens: set[str] = set()
    for submission, content in history(ledger):
        if any(run_id in run_ids for run_id in content["runs"]):
            if layout.job(submission).exists():
                return True
            tokens.add(submission.name)
        elif str(content.get("run")) in run_ids:
            tokens.add(submission.name)
    if not tokens:
        return False
    try:
        return any(token(task.name) in tokens for task in client.queue(MARK))
    except ValueError:
        return True


def _readable(submissions: Iterable[Path]) -> Iterator[Submission]:
    """The submissions with their contents, without those of other homes and those that cannot be read, because they are
    incomplete, private or of another version: the states of their runs show that.
    """
    for submission in submissions:
        with contextlib.suppress(ValueError):
            yield submission, read(submission)


def job_name(submission: Path, *labels: str) -> str:
    """`<label>-<label>-rlvr-<token>`. Characters of a label that a shell or SLURM might take for its own become `_`."""
    return "-".join([*(re.sub(r"[^\w.=+-]", "_", label, flags=re.ASCII)[:LABEL] for label in labels), ""]) + (
        MARK + submission.name
    )


def _labels(ledger: Ledger, sweep_id: str, kind: str, run_ids: Sequence[str]) -> tuple[str, str]:
    """What the name of a job tells people: its sweep, and its arm or how many it has."""
    sweep, of_job = ledger.sweep(sweep_id), set(run_ids)
    arms = {str(run.get("arm") or run["run_id"]) for run in sweep.runs if run["run_id"] in of_job}
    return sweep.name or sweep.study or sweep_id, (kind, *arms)[-1] if len(arms) < 2 else f"{len(arms)}-arms"


def token(name: str) -> str:
    """The token at the end of a job's name."""
    return name.rpartition(MARK)[2]


def queue(ledger: Ledger, patience_s: float = client.PATIENCE_S) -> list[QueuedTask]:
    """All jobs of this user's launches that are in the queue: those that squeue lists, and those of this home of the
    last minutes that it lacks, as its answer may be cached.
    """
    tasks = client.queue(MARK, patience_s)
    listed, since = {token(task.name) for task in tasks}, time.time() - FRESH_S
    for submission in layout.submissions(ledger.home).glob("*"):
        path = layout.job(submission)
        if submission.name not in listed and path.exists() and path.stat().st_mtime > since:
            tasks += client.tasks_of(str((read_json(path) or {}).get("job")))
    return tasks


def record_job(submission: Path, job: str) -> None:
    """Record the job number that SLURM has assigned. Harmless when repeated."""
    if read_json(layout.job(submission)) is None:
        write_json(layout.job(submission), {"job": job, "time": time.time()})


def read_queue(ledger: Ledger, patience_s: float = client.PATIENCE_S) -> Queue:
    """The queue, by one call of squeue of at most `patience_s`; without a call if this home has no submissions."""
    if not layout.submissions(ledger.home).is_dir():
        return Queue({})
    if shutil.which("squeue") is None:
        return Queue({}, answered=False)
    try:
        tasks = queue(ledger, patience_s)
    except ValueError:
        return Queue({}, answered=False)
    runs, stages = by_run(ledger, tasks), by_kind(ledger, tasks, "stage")
    # Without jobs that submit more at their end, nothing submits the runs that wait for room.
    later = frozenset(waves.waiting_for_room(ledger)) if runs or stages else frozenset[str]()
    return Queue(runs, stages=stages, later=later, reports=frozenset(by_kind(ledger, tasks, "report")))


def by_run(ledger: Ledger, tasks: Iterable[QueuedTask]) -> dict[str, QueuedTask]:
    """The task of each run. Tasks of other homes are left out."""
    task_of_run: dict[str, QueuedTask] = {}
    for task, submission, content in _of_this_home(ledger, tasks):
        if task.index is not None:
            run_ids = runs_of(content, task.index)
            if len(run_ids) > 1:  # a run that has ended for good has no job, although others in the same job continue
                run_ids = [run_id for run_id in run_ids if not layout.run_end(submission, run_id).exists()]
            task_of_run.update(dict.fromkeys(run_ids, task))
    return task_of_run


def runs_of(submission: Mapping[str, Any], index: int) -> list[str]:
    """The runs of one task of an array: one, or up to `pack`."""
    pack = submission["pack"]
    return [str(run_id) for run_id in submission["runs"][index * pack : (index + 1) * pack]]


def by_kind(ledger: Ledger, tasks: Iterable[QueuedTask], kind: Literal["stage", "report"]) -> dict[str, QueuedTask]:
    """The job of each stage (by its id), or of each sweep's report (by the id of the sweep)."""
    return {str(content[kind]): task for task, _, content in _of_this_home(ledger, tasks) if kind in content}


def _of_this_home(ledger: Ledger, tasks: Iterable[QueuedTask]) -> list[tuple[QueuedTask, Path, Mapping[str, Any]]]:
    """The tasks of this home, each with its submission and the content of that."""
    named = [(task, layout.submissions(ledger.home) / token(task.name)) for task in tasks]
    contents = dict(_readable({submission for _, submission in named}))
    return [(task, submission, contents[submission]) for task, submission in named if submission in contents]


def with_queue_states(ledger: Ledger, states: Sequence[RunState], queue: Queue | None = None) -> list[RunState]:
    """The states of the ledger, completed by those of the queue: runs that wait, and jobs that run without a process of
    the run; and by the ends that only SLURM knows.
    """
    queue = read_queue(ledger) if queue is None else queue
    if not queue.answered:
        submitted = {run_id for _, content in history(ledger) for run_id in content["runs"]}
        return [_unknown(state) if state.run_id in submitted else state for state in states]
    states = [_with_task(state, queue.tasks.get(state.run_id)) for state in states]
    launched_here = ledger.waiting_here() if any(s.state is State.PLANNED for s in states) else set[str]()
    states = [_waiting(state, queue, launched_here) for state in states]
    without_job = [s.run_id for s in states if s.state is State.PLANNED]
    missing = _missing_stages(ledger, without_job, queue) if without_job else {}
    states = [_without_stage(state, missing.get(state.run_id)) for state in states]
    return with_ends_from_slurm(states, functools.partial(history, ledger), queue.tasks)


def _with_task(state: RunState, task: QueuedTask | None) -> RunState:
    if task is not None and task.state == "SUSPENDED" and state.state is State.RUNNING:  # silent for a reason
        return replace(state, phase="SUSPENDED", heartbeat_age=None, eta=None)
    if task is None or state.state in (State.FINISHED, State.RUNNING, State.MISSING, State.UNREADABLE):
        return state
    if task.state in WAITING:
        reason = f" ({task.reason})" if task.reason not in ("", "None") else ""
        return replace(state, state=State.QUEUED, phase=f"{task.state}{reason}")
    if task.state == "COMPLETING":  # unless the run has ended for good, the job may return to the queue
        unfinished = state.state in (State.PREEMPTED, State.LOST, State.PLANNED)
        return replace(state, state=State.RUNNING if unfinished else state.state, phase="COMPLETING")
    return replace(state, state=State.RUNNING, phase=f"{task.state} on {task.node}")


def _unknown(state: RunState) -> RunState:
    """The state of a submitted run while SLURM does not answer: it may have a job, so it must not count as ended."""
    return replace(state, state=State.QUEUED, phase=UNKNOWN) if state.state in (State.PLANNED, State.LOST) else state


def _waiting(state: RunState, queue: Queue, launched_here: Container[str]) -> RunState:
    """A planned run counts as queued if a launch on this machine, or jobs in the queue, will start it."""
    if state.state is not State.PLANNED:
        return state
    if state.run_id in queue.later:
        return replace(state, state=State.QUEUED, phase=LATER)
    return replace(state, state=State.QUEUED) if state.run_id in launched_here else state


def is_launched_here(ledger: Ledger, sweep_id: str) -> bool:
    """Whether a launch of the sweep is at work on this machine."""
    return any(map(lock_is_held, layout.launch_locks(ledger.sweep_dir(sweep_id))))


def may_grow(ledger: Ledger, sweep: Sweep, queue: Queue) -> bool:
    """Whether a process of this machine, or a job in the queue, may start further runs of a sweep."""
    if is_launched_here(ledger, sweep.sweep_id):
        return True
    is_deciding = bool(lock_is_held(layout.deciding_lock(ledger.sweep_dir(sweep.sweep_id))))
    return grows(sweep.info) and (is_deciding or not queue.answered or sweep.sweep_id in queue.reports)


# --- runs whose stage was not built


def _missing_stages(ledger: Ledger, run_ids: Sequence[str], queue: Queue) -> dict[str, Submission]:
    """By run without a job, the submission of the stage that it needs and whose job ended without success."""
    newest: dict[str, Submission] = {}
    for submission, content in history(ledger):
        # A job writes its number when it starts. Without it, nothing was accepted, or it was cancelled while it waited.
        if "stage" in content and (layout.job(submission).exists() or layout.stage_end(submission).exists()):
            newest.setdefault(content["stage"], (submission, content))
    missing: dict[str, Submission] = {}
    for run_id in run_ids:
        for stage in recorded_stages(ledger.run_dir(run_id)) or []:
            if stage in newest and stage not in queue.stages and not (layout.stages(ledger.home) / stage).is_dir():
                missing.setdefault(run_id, newest[stage])  # the first one: later stages start from it
    return missing


def _without_stage(state: RunState, stage: Submission | None) -> RunState:
    if stage is None:
        return state
    path, about = stage
    unknown = {"cause": "ended", "message": "without a message: cancelled, or its node failed"}
    end = unknown | (read_json(layout.stage_end(path)) or {})
    text = f"the {about.get('source', '')} stage {about['stage']} that it starts from was not built: {end['cause']}: "
    text += f"{end['message']} (the same command, or `python -m sweeps retry`, tries again)"
    log = layout.job_log(path, "stage")
    return replace(state, state=State.FAILED, cause="stage", message=text, log=log)
