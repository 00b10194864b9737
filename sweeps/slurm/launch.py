"""The SLURM backend of a launch: runs become arrays of jobs, and the command returns. Nothing has to stay alive."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import remove, write_json, write_text
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.runs import Unreadable, read_proven_config
from rlvr.ledger.stages import recorded_stages
from rlvr.ledger.sweeps import Ledger, grows
from slurm import client, limits
from slurm.submit import Full, hand_in, script
from sweeps.slurm import jobs, submissions
from sweeps.slurm.follow import follow
from sweeps.slurm.stages import StageJobs
from sweeps.verdict import Outcome

LOCK_S = 60.0
MORE_S = 5.0  # a job that ends waits no longer for other submitters
ENDING_S = 30.0  # jobs that are ending may still go back into the queue: they are waited for
REPORT_GB = 4.0
# Of `cluster`: what a job in the queue cannot change any more.
ASKED = (
    *("partition", "account", "qos", "time_min", "gpus", "cpus", "memory_gb", "nodes", "ranks", "threads", "pack"),
    "sampling_nodes",
    *("setup", "environment", "scratch", "container", "sbatch"),
)


@dataclass
class Submitted(Outcome):
    """What a launch handed to SLURM: it has not ended, and that is no failure."""

    jobs: list[str] = field(default_factory=list[str])
    submitted: list[str] = field(default_factory=list[str])  # run ids
    before: list[str] = field(default_factory=list[str])  # had a job already
    stages: list[str] = field(default_factory=list[str])  # ids: they are built first
    report: str = ""  # job
    later: list[str] = field(default_factory=list[str])  # run ids: jobs submit them when the queue has room

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
        return ", ".join(parts) + ".  Look: python -m sweeps status    Stop: python -m sweeps cancel"


def run_slurm(
    ledger: Ledger,
    sweep_id: str,
    configs: Mapping[str, Mapping[str, Any]],
    *,
    run_ids: Collection[str] | None = None,
    shipper: Sequence[str] | None,
    wait: bool = False,
    unless_cancelled: bool = False,
) -> Outcome:
    """Submit what has neither finished nor a job. `configs`: the frozen ones, by run id; what has none is left out.

    run_ids: of the sweep's runs these alone (None: all).
    shipper: command that carries the metrics away beside the jobs, with `wait`; without, the report's job ships.
    unless_cancelled: as for `submit`.
    ValueError when SLURM does not answer or refuses: then it says what to do, and what was submitted stays.
    """
    run_ids = [each for each in ledger.sweep(sweep_id).run_ids if run_ids is None or each in run_ids]
    began = time.monotonic()
    runs = [(run_id, configs[run_id]) for run_id in run_ids if run_id in configs]
    done = submit(ledger, sweep_id, runs, ship=shipper is not None, unless_cancelled=unless_cancelled)
    done.seconds = time.monotonic() - began
    print(done.summary(), flush=True)
    return (follow(ledger, sweep_id, run_ids, done.skipped, shipper) if wait else None) or done


@contextlib.contextmanager
def _submitting(ledger: Ledger, patience_s: float) -> Generator[int, None, None]:
    """One process at a time looks at the queue and the waves, and adds to them or takes from them.

    Gives the lock, for sbatch to inherit: a submitter that is killed keeps others out until its sbatch has ended too.
    Raises ValueError if another process holds it.
    """
    target = layout.submissions(ledger.home)
    target.mkdir(parents=True, exist_ok=True)
    held = lock(layout.lock(target), patience_s)
    if held is None:
        raise ValueError(
            f"another launch has been submitting for {patience_s:.0f} s ({layout.lock(target)}). Try again."
        )
    try:
        yield held
    finally:
        unlock(held)


def submit(
    ledger: Ledger,
    sweep_id: str,
    runs: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    ship: bool,
    unless_cancelled: bool = False,
) -> Submitted:
    """Jobs for stages that are missing, an array for each resource signature, and a job that reports at the end.

    unless_cancelled: raises ValueError if the sweep was cancelled; else it is so no longer.
    """
    with _submitting(ledger, LOCK_S) as held:
        mark = layout.cancelled(ledger.sweep_dir(sweep_id))
        if unless_cancelled and mark.exists():
            raise ValueError(f"sweep {sweep_id} was cancelled. `python -m sweeps retry {sweep_id}` goes on with it.")
        mark.unlink(missing_ok=True)
        return _submit(ledger, sweep_id, runs, ship=ship, held=held)


def _submit(
    ledger: Ledger, sweep_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], *, ship: bool, held: int
) -> Submitted:
    """As `submit`, by who holds the lock."""
    done, queue = _sort(ledger, [run_id for run_id, _ in runs])
    settled = {*done.skipped, *done.before}
    todo = [(run_id, config) for run_id, config in runs if run_id not in settled]
    _check([jobs.cluster_of(config) for _, config in todo])
    prepared = StageJobs(ledger, sweep_id, queue, held)
    groups: list[Alike] = []
    for run_id, config in todo:
        one = Alike(jobs.cluster_of(config), prepared.before(run_id, config), [run_id])
        same = next((each for each in groups if (each.cluster, each.after) == (one.cluster, one.after)), None)
        if same is None:
            groups.append(one)
        else:
            same.run_ids.append(run_id)
    done.later = _send_what_fits(ledger, sweep_id, groups, done, held)
    here = {run_id for run_id, _ in runs}
    kept = submissions.waves(ledger).get(sweep_id, {"runs": []})["runs"]  # of other calls
    rest = [*(run_id for run_id in kept if run_id not in here), *done.later]
    submissions.record_waves(ledger, sweep_id, rest, ship=ship)
    done.stages = prepared.fresh
    cluster = runs[0][1]["cluster"]
    wanted = cluster["report"] or grows(ledger.sweep(sweep_id).info)  # which the job that reports goes on with
    if wanted and not rest:  # else the jobs that submit the last of them see to it
        done.report = _send_report(ledger, sweep_id, cluster, queue, ship=ship, fresh=done.jobs, held=held)
    return done


def _send_what_fits(ledger: Ledger, sweep_id: str, groups: Sequence[Alike], done: Submitted, held: int) -> list[str]:
    """Arrays, as long as the queue takes them; of one that it refuses as too long the first half. Returns what is left.

    ValueError if sbatch refuses for another reason, or if no job is left in the queue that could submit the rest.
    """
    arrays = chunks(groups, client.max_array() if groups else 1)
    for number, array in enumerate(arrays):
        left = [run_id for each in arrays[number:] for run_id in each.run_ids]
        try:
            sent = _send_or_half(ledger, sweep_id, array, arrays=len(arrays), held=held, done=done)
        except Full:
            if not done.submitted and not client.queue(submissions.PREFIX):
                raise
            return left
        except ValueError as error:
            if not done.submitted:
                raise
            raise ValueError(
                f"{error} {len(done.submitted)} of {len(done.submitted) + len(left)} runs are in the queue (job "
                f"{', '.join(done.jobs)}), {len(left)} are not: the same command submits those alone."
            ) from None
        if sent < len(array.run_ids):
            return left[sent:]
    return []


def _send_or_half(ledger: Ledger, sweep_id: str, array: Alike, *, arrays: int, held: int, done: Submitted) -> int:
    """How many of its runs have been submitted. Raises Full if not even one job's are taken."""
    pack = array.cluster["pack"]
    while True:
        try:
            done.jobs.append(_send(ledger, sweep_id, array, arrays=arrays, held=held))
        except Full:
            tasks = math.ceil(len(array.run_ids) / pack) // 2
            if not tasks:
                raise
            array = replace(array, run_ids=array.run_ids[: tasks * pack])
        else:
            done.submitted += array.run_ids
            return len(array.run_ids)


def submit_more(ledger: Ledger) -> None:
    """Called by a job at its end: submit runs that found no room in the queue. What is left is for the next job.

    Another submitter at work does as well: then nothing is done here.
    """
    for sweep_id in submissions.waves(ledger):
        try:
            with _submitting(ledger, MORE_S) as held:
                done = _submit_waves(ledger, sweep_id, held)
        except ValueError as error:
            print(f"runs of sweep {sweep_id} still wait for room in the queue: {error}", flush=True)
        else:
            if done is not None:
                print(done.summary(), flush=True)


def _submit_waves(ledger: Ledger, sweep_id: str, held: int) -> Submitted | None:
    """What waits for room, as it stands now: another submitter may have come first, or `cancel`. None: nothing."""
    content = submissions.waves(ledger).get(sweep_id, {"runs": [], "ship": False})
    configs: list[tuple[str, Mapping[str, Any]]] = []
    for run_id in content["runs"]:
        try:
            configs.append((run_id, read_proven_config(ledger.run_dir(run_id))))
        except Unreadable as error:
            print(error, flush=True)
    if len(configs) < len(content["runs"]):
        readable = [run_id for run_id, _ in configs]
        submissions.record_waves(ledger, sweep_id, readable, ship=content["ship"])
    return _submit(ledger, sweep_id, configs, ship=content["ship"], held=held) if configs else None


def check_pending(ledger: Ledger, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError if runs that have a job are to have one that asks for something else: SLURM would keep the old one."""
    tasks = submissions.by_run(ledger, client.queue(submissions.PREFIX)) if configs else {}
    differ: dict[str, str] = {}
    for run_id, config in configs.items():
        if run_id in tasks:
            path = layout.submissions(ledger.home) / tasks[run_id].name.removeprefix(submissions.PREFIX)
            asked: Mapping[str, Any] = submissions.read(path).get("asked") or {}
            wanted = _asked(jobs.cluster_of(config))
            words = [f"cluster.{k}={asked[k]}, not {wanted[k]}" for k in asked if wanted.get(k) != asked[k]]
            if words:
                differ[run_id] = ", ".join(words)
    if differ:
        first = next(iter(differ))
        which = first if len(differ) == 1 else "SWEEP"
        raise ValueError(
            f"{len(differ)} of {len(configs)} runs have a job that asked for {differ[first]}. End it with `python -m "
            f"sweeps cancel {which}` (what runs saves first), then repeat this command."
        )


def _asked(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What a job asks of the cluster, and how it starts its runs, as JSON keeps it."""
    return json.loads(json.dumps({key: cluster[key] for key in ASKED}))


def _sort(ledger: Ledger, run_ids: Sequence[str]) -> tuple[Submitted, list[client.Task]]:
    """(what needs no job, the queue), after waiting for jobs that are just ending."""
    deadline = time.monotonic() + ENDING_S
    while True:
        queue = client.queue(submissions.PREFIX)
        tasks = submissions.by_run(ledger, queue)
        ending = [r for r in run_ids if r in tasks and tasks[r].state == "COMPLETING"]
        if not ending or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    states = {state.run_id: state for state in ledger.states(run_ids)}
    done = Submitted(skipped=[r for r in run_ids if states[r].state is State.FINISHED])
    rest = [r for r in run_ids if states[r].state is not State.FINISHED]
    done.before = [r for r in rest if r in tasks or states[r].state is State.RUNNING]
    return done, queue


@dataclass
class Alike:
    """Runs whose jobs ask for the same: they can be one array."""

    cluster: Mapping[str, Any]
    after: Sequence[str]  # jobs that come first
    run_ids: list[str]


def chunks(groups: Sequence[Alike], most: int) -> list[Alike]:
    """Arrays no longer than SLURM takes, in the order of the runs."""
    return [
        replace(group, run_ids=group.run_ids[first : first + size])
        for group in groups
        for size in [most * group.cluster["pack"]]
        for first in range(0, len(group.run_ids), size)
    ]


def _check(clusters: Sequence[Mapping[str, Any]]) -> None:
    """ValueError if a job asks for what no node has: SLURM would take many a one, and never start it."""
    distinct: list[Mapping[str, Any]] = []
    for cluster in clusters:
        if cluster not in distinct:
            distinct.append(cluster)
    there = limits.nodes() if distinct else []
    for cluster in distinct:
        limits.check(jobs.of_runs(cluster), there)


def _send(ledger: Ledger, sweep_id: str, array: Alike, *, arrays: int, held: int) -> str:
    """Record, script, sbatch, number: in this order, so that death between any two loses and doubles nothing."""
    cluster = array.cluster
    resources = jobs.of_runs(cluster)
    keys = ("threads", "ranks", "nodes", "sampling_nodes", "pack", "retries", "requeues", "container", "hung_min")
    settings = {**{k: cluster[k] for k in keys}, "asked": _asked(cluster)}
    target = submissions.record(ledger, sweep_id, array.run_ids, settings)
    parallel = max(1, cluster["max_parallel"] // arrays) if cluster["max_parallel"] else None
    text = script(
        jobs.command("sweeps.slurm.job_of_runs", target),
        resources,
        name=submissions.job_name(target),
        folder=target,
        log=layout.task_log(target, "%a").name,
        count=math.ceil(len(array.run_ids) / cluster["pack"]),
        max_parallel=parallel,
        after_ok=array.after,
        requeues=cluster["requeues"],
    )
    path = layout.script(target, "array")
    write_text(path, text, private=True)
    try:
        job = hand_in(path, resources, keep_open=[held])
    except Full:
        remove(target)  # it stands for nothing
        raise
    submissions.record_job(target, job)
    return job


def _send_report(
    ledger: Ledger,
    sweep_id: str,
    cluster: Mapping[str, Any],
    queue: Sequence[client.Task],
    *,
    ship: bool,
    fresh: Sequence[str],
    held: int,
) -> str:
    """The job that ships and reports after all jobs of the sweep; "" if one waits already, or none is needed.

    Asked of the queue like all else: a submitter that died before this line is made good by the same command.
    """
    tasks, waiting = submissions.by_run(ledger, queue), submissions.by_word(ledger, queue, "report")
    running = {tasks[r].job.split("_")[0] for r in ledger.sweep(sweep_id).run_ids if r in tasks} | set(fresh)
    if not running or (not fresh and sweep_id in waiting):
        return ""
    target = ledger.sweep_dir(sweep_id)
    command = jobs.command("sweeps.slurm.job_of_report", target) + (["--ship"] if ship else [])
    resources = jobs.resources(cluster, time_min=min(60, cluster["time_min"]), memory_gb=REPORT_GB, cpus=1)
    name = submissions.job_name(submissions.record(ledger, sweep_id, [], {"report": sweep_id}))
    log, path = layout.job_log(target, "report").name, layout.script(target, "report")
    text = script(command, resources, name=name, folder=target, log=log, count=None, after_any=sorted(running))
    write_text(path, text, private=True)
    try:
        return hand_in(path, resources, keep_open=[held])
    except ValueError as error:  # the runs are what matters: they have their jobs
        print(f"no report at the end: {error} `python -m analysis` builds it.", file=sys.stderr, flush=True)
        return ""


# --- cancel


def cancel(ledger: Ledger, run_ids: Sequence[str], sweep_id: str | None = None) -> list[str]:
    """End the jobs of these runs; they save first. Stages that nobody else waits for end too.

    sweep_id: of the sweep that all of them are; its own jobs do not go on with it then.
    Returns the runs whose job ends, with those that are packed into the same jobs.
    """
    with _submitting(ledger, LOCK_S):
        queue = client.queue(submissions.PREFIX)
        if sweep_id is not None:
            write_json(layout.cancelled(ledger.sweep_dir(sweep_id)), {"time": time.time()})
        tasks = submissions.by_run(ledger, queue)
        ending = {tasks[run_id].job for run_id in run_ids if run_id in tasks}
        found = [run_id for run_id, task in tasks.items() if task.job in ending]
        others = tasks.keys() - {*found}
        wanted = {stage for run_id in others for stage in recorded_stages(ledger.run_dir(run_id)) or []}
        idle = [task.job for stage, task in submissions.by_word(ledger, queue, "stage").items() if stage not in wanted]
        for waiting, content in submissions.waves(ledger).items():
            left = [run_id for run_id in content["runs"] if run_id not in run_ids]
            if len(left) < len(content["runs"]):
                submissions.record_waves(ledger, waiting, left, ship=content["ship"])
        client.cancel([*(tasks[run_id].job for run_id in found), *idle])
    return found
