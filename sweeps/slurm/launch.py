"""The SLURM backend of a launch: submits runs as job arrays and returns. No process has to keep running."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import write_json
from rlvr.ledger.lock import held_lock
from rlvr.ledger.runs import lines_by_reason, read_verified_config
from rlvr.ledger.stages import Stage, recorded_stages
from rlvr.ledger.sweeps import Ledger, grows
from slurm import client, limits
from slurm.submit import QueueFull
from sweeps.planned import read_launchable
from sweeps.slurm import jobs, submissions, waves
from sweeps.slurm.report import report_at_end
from sweeps.slurm.stages import StageJobs
from sweeps.verdict import LaunchOutcome

LOCK_S = 60.0  # longest wait of a launch for other submitters
MORE_S = 5.0  # longest wait of a job at its end for other submitters
ENDING_S = 30.0  # longest wait for jobs that are ending, which may still return to the queue
# Keys of `cluster` that a job in the queue cannot change any more.
FIXED_IN_QUEUE = (
    *("partition", "account", "qos", "time_min", "gpus", "cpus", "memory_gb", "nodes", "ranks", "threads", "pack"),
    "sampling_nodes",
    *("setup", "environment", "scratch", "container", "sbatch"),
)


@dataclass
class Submitted(LaunchOutcome):
    """The outcome of a launch whose runs were submitted to SLURM. They have not ended, which is no failure."""

    jobs: list[str] = field(default_factory=list[str])
    submitted: list[str] = field(default_factory=list[str])  # run ids
    before: list[str] = field(default_factory=list[str])  # ids of runs that had a job already
    stages: list[str] = field(default_factory=list[str])  # ids of stages that are built first
    report: str | None = ""  # number of the report's job; None: jobs submit it when the queue has room
    later: list[str] = field(default_factory=list[str])  # ids of runs that jobs submit when the queue has room

    @property
    def exit_code(self) -> int:
        return 0

    def summary(self) -> str:
        parts = [f"{len(self.submitted)} runs submitted to SLURM"]
        parts[0] += f" (job {', '.join(self.jobs)})" if self.jobs else ""
        parts += [f"{len(self.later)} later, by those jobs, when the queue has room"] if self.later else []
        parts += [f"after stage {', '.join(self.stages)}"] if self.stages else []
        parts += [f"{len(self.before)} have a job already"] if self.before else []
        parts += [f"{len(self.skipped)} finished before"] if self.skipped else []
        parts += [f"report in job {self.report}"] if self.report else []
        parts += ["report later, by those jobs, when the queue has room"] if self.report is None else []
        return ", ".join(parts) + ".  Look: python -m sweeps status    Stop: python -m sweeps cancel"


def _submit_lock_held(ledger: Ledger, patience_s: float) -> contextlib.AbstractContextManager[int]:
    """Hold the submitter's lock: only one process at a time reads and changes the queue and the waves.

    Yields the lock's descriptor, which sbatch inherits: if the submitter is killed, the lock stays held until its
    sbatch has ended. Raises ValueError if another process holds it.
    """
    path = layout.lock(layout.submissions(ledger.home))
    busy = ValueError(f"another launch has been submitting for {patience_s:.0f} s ({path}). Try again.")
    return held_lock(path, patience_s, busy)


def submit(
    ledger: Ledger, sweep_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], *, unless_cancelled: bool = False
) -> Submitted:
    """Submit the runs that have neither finished nor a job: jobs for missing stages, an array for each set of
    resources, and a job that reports at the end.

    unless_cancelled: raise ValueError if the sweep was cancelled; otherwise its mark of cancellation is removed.
    Raises ValueError, with advice, if SLURM does not answer or refuses; jobs submitted before that stay in the queue.
    """
    with _submit_lock_held(ledger, LOCK_S) as held:
        mark = layout.cancelled(ledger.sweep_dir(sweep_id))
        if unless_cancelled and mark.exists():
            raise ValueError(f"sweep {sweep_id} was cancelled. `python -m sweeps retry {sweep_id}` continues it.")
        mark.unlink(missing_ok=True)
        return _submit(ledger, sweep_id, runs, held=held)


def _submit(ledger: Ledger, sweep_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], *, held: int) -> Submitted:
    """As `submit`; the caller holds the lock `held`. runs: [] to submit the report alone."""
    outcome, queue = _sort(ledger, [run_id for run_id, _ in runs])
    without_job = {*outcome.skipped, *outcome.before}
    todo = [(run_id, config) for run_id, config in runs if run_id not in without_job]
    _check([jobs.cluster_of(config) for _, config in todo])
    stage_jobs = StageJobs(ledger, sweep_id, queue, held)
    _send_what_fits(ledger, sweep_id, _arrays(todo, stage_jobs), stage_jobs, outcome, held)
    outcome.later = [run_id for run_id, _ in todo if run_id not in outcome.submitted]
    outcome.stages = stage_jobs.fresh
    waiting = waves.read(ledger).get(sweep_id)
    others = [run_id for run_id in waiting or () if run_id not in dict(runs)]
    if later := [*others, *outcome.later]:  # the report is submitted together with the last of them
        waves.write(ledger, sweep_id, later)
        return outcome
    # A finished run keeps the settings of the launch that trained it: those of another run are newer.
    if runs:
        cluster = (todo or runs)[0][1]["cluster"]
    else:
        cluster = read_verified_config(ledger.run_dir(ledger.sweep(sweep_id).run_ids[0]))["cluster"]
    if cluster["report"] or grows(ledger.sweep(sweep_id).info):  # the report's job submits the next wave
        is_owed = waiting is not None
        waves.write(ledger, sweep_id, [])  # if this process is killed now, jobs submit it
        outcome.report = report_at_end(ledger, sweep_id, cluster, queue, fresh=outcome.jobs, held=held, is_owed=is_owed)
    if outcome.report is not None:
        waves.write(ledger, sweep_id, None)
    return outcome


def _arrays(todo: Sequence[tuple[str, Mapping[str, Any]]], stage_jobs: StageJobs) -> list[Array]:
    """The arrays of these runs: those that ask for the same, and start from the same stages, are in one."""
    arrays: list[Array] = []
    for run_id, config in todo:
        cluster, stages = jobs.cluster_of(config), stage_jobs.needed(run_id, config)
        same = next((array for array in arrays if (array.cluster, array.stages) == (cluster, stages)), None)
        if same is None:
            arrays.append(Array(cluster, [run_id], stages, config))
        else:
            same.run_ids.append(run_id)
    return chunks(arrays, client.max_array() if arrays else 1)


def _send_what_fits(
    ledger: Ledger, sweep_id: str, arrays: Sequence[Array], stage_jobs: StageJobs, outcome: Submitted, held: int
) -> None:
    """Submit arrays, each after the jobs of its stages, until the queue is full. Adds what was sent to the outcome.

    ValueError if sbatch refuses for another reason, or if no job is left in the queue that could submit the rest later.
    """
    try:
        for number, unshared in enumerate(arrays):
            array = sharing(unshared, number, len(arrays), outcome.jobs)
            after = stage_jobs.send_missing(array.stages, array.run_ids[0], array.config)
            num_sent = _send_first_part(ledger, sweep_id, replace(array, after_ok=after), outcome, held)
            if num_sent < len(array.run_ids):
                return
    except QueueFull:
        if not outcome.submitted and not _is_continued(ledger):
            raise
    except ValueError as error:
        if not outcome.submitted:
            raise
        num_runs = sum(len(array.run_ids) for array in arrays)
        raise ValueError(
            f"{error} {len(outcome.submitted)} of {num_runs} runs are in the queue (job {', '.join(outcome.jobs)}), "
            f"{num_runs - len(outcome.submitted)} are not: the same command submits those alone."
        ) from None


def _send_first_part(ledger: Ledger, sweep_id: str, array: Array, outcome: Submitted, held: int) -> int:
    """Submit an array, or as large a first part of it as the queue takes, by halving. Returns the number of its runs
    that were submitted. Raises QueueFull if there is no room for even one job.
    """
    while True:
        try:
            outcome.jobs.append(_send(ledger, sweep_id, array, held=held))
        except QueueFull:
            num_jobs = array.num_jobs // 2
            if not num_jobs:
                raise
            array = replace(array, run_ids=array.run_ids[: num_jobs * array.cluster["pack"]])
        else:
            outcome.submitted += array.run_ids
            return len(array.run_ids)


def _is_continued(ledger: Ledger) -> bool:
    """Whether the queue has jobs of this home that submit more at their end: those of runs and of stages."""
    tasks = submissions.queue(ledger)
    return bool(submissions.by_run(ledger, tasks) or submissions.by_kind(ledger, tasks, "stage"))


def submit_waiting(ledger: Ledger, sweep_id: str) -> Submitted | None:
    """Submit the runs of a sweep for which the queue had no room, or its report; None if nothing waits. A job at its
    end calls it in a process of its own (`waves.submit_more`). The others wait for the next job.
    """
    with _submit_lock_held(ledger, MORE_S) as held:
        waiting = waves.read(ledger).get(sweep_id)  # under the lock: another submitter, or `cancel`, may be faster
        if waiting is None:
            return None
        configs, errors = read_launchable(ledger, waiting)
        for line in lines_by_reason(errors):
            print(line, flush=True)
        if errors:
            waves.write(ledger, sweep_id, list(configs))
        return _submit(ledger, sweep_id, list(configs.items()), held=held)


def give_up_stage(ledger: Ledger, stage: str) -> None:
    """Called by the job of a stage that was not built: the runs that start from it wait for room no longer. Otherwise
    the next job to end would submit the stage again. The same command, or `retry`, does so.
    """
    try:
        with _submit_lock_held(ledger, MORE_S):
            for sweep_id, waiting in waves.read(ledger).items():
                stages = {run_id: recorded_stages(ledger.run_dir(run_id)) or [] for run_id in waiting}
                waves.write(ledger, sweep_id, [run_id for run_id in waiting if stage not in stages[run_id]])
    except (ValueError, OSError) as error:
        print(f"runs that start from stage {stage} still wait for room in the queue: {error}", flush=True)


def check_pending(ledger: Ledger, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError if runs have a job in the queue with other settings than these: SLURM would keep the old ones."""
    tasks = submissions.by_run(ledger, submissions.queue(ledger)) if configs else {}
    differ: dict[str, str] = {}
    for run_id, config in configs.items():
        if run_id in tasks:
            path = layout.submissions(ledger.home) / submissions.token(tasks[run_id].name)
            old: Mapping[str, Any] = submissions.read(path).get("asked") or {}
            new = _job_settings(jobs.cluster_of(config))
            changes = [f"cluster.{k}={old[k]}, not {new[k]}" for k in old if new.get(k) != old[k]]
            if changes:
                differ[run_id] = ", ".join(changes)
    if differ:
        first = next(iter(differ))
        name = first if len(differ) == 1 else "SWEEP"
        raise ValueError(
            f"{len(differ)} of {len(configs)} runs have a job that asked for {differ[first]}. End it with `python -m "
            f"sweeps cancel {name}` (running runs save first), then repeat this command."
        )


def _job_settings(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `cluster` that a job in the queue cannot change, as JSON keeps them."""
    return json.loads(json.dumps({key: cluster[key] for key in FIXED_IN_QUEUE}))


def _sort(ledger: Ledger, run_ids: Sequence[str]) -> tuple[Submitted, list[client.QueuedTask]]:
    """(an outcome with the runs that need no job, the queue), after waiting for jobs that are just ending."""
    deadline = time.monotonic() + ENDING_S
    while True:
        queue = submissions.queue(ledger)
        tasks = submissions.by_run(ledger, queue)
        ending = [r for r in run_ids if r in tasks and tasks[r].state == "COMPLETING"]
        if not ending or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    states = {state.run_id: state for state in ledger.states(run_ids)}
    unfinished = [r for r in run_ids if states[r].state is not State.FINISHED]
    return Submitted(
        skipped=[r for r in run_ids if states[r].state is State.FINISHED],
        before=[r for r in unfinished if r in tasks or states[r].state is State.RUNNING],
    ), queue


@dataclass
class Array:
    """Runs whose jobs have the same settings and start from the same stages, so that they can be one job array."""

    cluster: Mapping[str, Any]
    run_ids: list[str]
    stages: Sequence[Stage] = ()  # to be built before these runs
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the first of them
    max_parallel: int | None = None  # how many of its jobs run at a time
    after_any: Sequence[str] = ()  # jobs that have to end first
    after_ok: Sequence[str] = ()  # jobs that have to succeed first

    @property
    def num_jobs(self) -> int:
        return math.ceil(len(self.run_ids) / self.cluster["pack"])


def chunks(arrays: Sequence[Array], most: int) -> list[Array]:
    """The arrays cut into pieces of at most `most` jobs, in the order of the runs."""
    pieces: list[Array] = []
    for array in arrays:
        size = most * array.cluster["pack"]
        for first in range(0, len(array.run_ids), size):
            pieces.append(replace(array, run_ids=array.run_ids[first : first + size]))
    return pieces


def sharing(array: Array, number: int, num_arrays: int, sent: Sequence[str]) -> Array:
    """Array `number` of a launch with its share of `cluster.max_parallel`. If there are more arrays than jobs may run
    at a time, each of the others begins when an earlier one has ended.

    sent: the jobs of the arrays before it.
    """
    most = array.cluster["max_parallel"]
    if not most:
        return array
    if number >= most:
        return replace(array, max_parallel=1, after_any=[sent[number - most]])
    return replace(array, max_parallel=max(1, most // num_arrays + (number < most % num_arrays)))


def _check(clusters: Sequence[Mapping[str, Any]]) -> None:
    """ValueError if a job needs more than any node has: SLURM would accept many such jobs, and never start them."""
    distinct = {repr(cluster): cluster for cluster in clusters}.values()
    nodes = limits.nodes() if distinct else []
    for cluster in distinct:
        limits.check(jobs.of_runs(cluster), nodes)


def _send(ledger: Ledger, sweep_id: str, array: Array, *, held: int) -> str:
    cluster = array.cluster
    keys = ("threads", "ranks", "nodes", "sampling_nodes", "pack", "retries", "requeues", "container", "hung_min")
    about = {**{k: cluster[k] for k in keys}, "asked": _job_settings(cluster)}
    return submissions.send(
        ledger,
        sweep_id,
        "array",
        about,
        jobs.of_runs(cluster),
        held=held,
        run_ids=array.run_ids,
        count=array.num_jobs,
        max_parallel=array.max_parallel,
        after_ok=array.after_ok,
        after_any=array.after_any,
        requeues=cluster["requeues"],
    )


# --- cancel


def cancel(ledger: Ledger, run_ids: Sequence[str], sweep_id: str | None = None) -> list[str]:
    """End the jobs of these runs, which save first, and the jobs of stages that no other run waits for.

    sweep_id: set if these are all runs of a sweep, which is then marked as cancelled: its jobs submit no further wave.
    Returns the runs whose job ends, with those that are packed into the same jobs.
    """
    with _submit_lock_held(ledger, LOCK_S):
        queue = submissions.queue(ledger)
        if sweep_id is not None:
            write_json(layout.cancelled(ledger.sweep_dir(sweep_id)), {"time": time.time()})
        tasks = submissions.by_run(ledger, queue)
        ending = {tasks[run_id].job for run_id in run_ids if run_id in tasks}
        cancelled = [run_id for run_id, task in tasks.items() if task.job in ending]
        left = {name: [r for r in runs if r not in run_ids] for name, runs in waves.read(ledger).items()}
        others = (tasks.keys() - {*cancelled}).union(*left.values())
        needed = {stage for run_id in others for stage in recorded_stages(ledger.run_dir(run_id)) or []}
        stage_jobs = submissions.by_kind(ledger, queue, "stage")
        unneeded = [task.job for stage, task in stage_jobs.items() if stage not in needed]
        for name, runs in left.items():
            waves.write(ledger, name, None if name == sweep_id else runs)
        client.cancel([*(tasks[run_id].job for run_id in cancelled), *unneeded])
    if not tasks.keys() - {*cancelled} and len(unneeded) == len(stage_jobs):  # no job is left that submits more
        for name, runs in left.items():
            if name != sweep_id and (runs or grows(ledger.sweep(name).info)):
                print(
                    f"Sweep {name} waited for room beside these jobs: `python -m sweeps retry {name}` submits the rest."
                )
    return cancelled
