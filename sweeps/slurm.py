"""The SLURM backend of a launch: runs become arrays of jobs, and the command returns. Nothing has to stay alive."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.lock import lock, unlock
from rlvr.paths import write_text
from slurm import client
from slurm.submit import Resources, hand_in, script
from sweeps import submissions
from sweeps.ledger import Ledger, RunState
from sweeps.progress import count, table, why
from sweeps.submissions import joined
from sweeps.verdict import Outcome
from sweeps.worker import Shipper

LOCK_S = 60.0
ENDING_S = 30.0  # jobs that are ending may still go back into the queue: they are waited for
LOOK_S = 3.0
SHIPPER_S = 60.0
REPORT_GB = 4.0


@dataclass
class Submitted(Outcome):
    """What a launch handed to SLURM: it has not ended, and that is no failure."""

    jobs: list[str] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)  # run ids
    before: list[str] = field(default_factory=list)  # had a job already
    report: str = ""  # job

    @property
    def exit_code(self) -> int:
        return 0

    def summary(self) -> str:
        parts = [f"{len(self.submitted)} runs submitted to SLURM"]
        parts[0] += f" (job {', '.join(self.jobs)})" if self.jobs else ""
        parts += [f"{len(self.before)} have a job already"] if self.before else []
        parts += [f"{len(self.skipped)} finished before"] if self.skipped else []
        parts += [f"report in job {self.report}"] if self.report else []
        return ", ".join(parts) + ".  Look: python -m sweeps status    Stop: python -m sweeps cancel"


def run_slurm(
    ledger: Ledger, sweep_id: str, settings: Mapping[str, Mapping[str, Any]], *, shipper: Sequence[str] | None,
    wait: bool = False,
) -> Outcome:  # fmt: skip
    """Submit what has neither finished nor a job. `settings`: the cluster part of each run's config, by run id.

    shipper: command that carries the metrics away beside the jobs, with `wait`; without, the report's job ships.
    ValueError when SLURM does not answer or refuses: then it says what to do, and what was submitted stays.
    """
    run_ids = ledger.sweep(sweep_id).run_ids
    began = time.monotonic()
    done = submit(ledger, sweep_id, [(r, settings[r]) for r in run_ids], ship=shipper is not None)
    done.seconds = time.monotonic() - began
    print(done.summary(), flush=True)
    return _follow(ledger, sweep_id, done, shipper) if wait else done


def submit(ledger: Ledger, sweep_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], *, ship: bool) -> Submitted:
    """One array for each resource signature, and a job that reports when all have ended.

    A lock lets one submitter at a time look at the queue and add to it. sbatch inherits it: a submitter that is killed
    keeps others out until its sbatch has ended too.
    """
    target = submissions.folder(ledger)
    target.mkdir(parents=True, exist_ok=True)
    held = lock(target / "lock", LOCK_S)
    if held is None:
        raise ValueError(f"another launch has been submitting for {LOCK_S:.0f} s ({target}/lock). Try again.")
    try:
        done, queue = _sort(ledger, [run_id for run_id, _ in runs])
        settled = {*done.skipped, *done.before}
        groups: dict[str, list[str]] = {}
        for run_id, cluster in runs:
            if run_id not in settled:
                groups.setdefault(json.dumps(dict(cluster), sort_keys=True), []).append(run_id)
        arrays = _chunks(groups, client.max_array() if groups else 1)
        for cluster, members in arrays:
            job = _send(ledger, sweep_id, members, cluster, len(arrays), held)
            done.jobs.append(job)
            done.submitted += members
        if runs and dict(runs[0][1])["report"]:
            done.report = _send_report(ledger, sweep_id, runs[0][1], queue, ship=ship, fresh=done.jobs, held=held)
        return done
    finally:
        unlock(held)


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
    done = Submitted(skipped=[r for r in run_ids if states[r].state == "finished"])
    done.before = [r for r in run_ids if r not in done.skipped and (r in tasks or states[r].state == "running")]
    return done, queue


def _chunks(groups: Mapping[str, list[str]], most: int) -> list[tuple[dict[str, Any], list[str]]]:
    """Arrays no longer than SLURM takes, in the order of the runs."""
    return [
        (json.loads(cluster), members[first : first + most])
        for cluster, members in groups.items()
        for first in range(0, len(members), most)
    ]


def _send(
    ledger: Ledger, sweep_id: str, members: Sequence[str], cluster: Mapping[str, Any], arrays: int, held: int
) -> str:  # fmt: skip
    """Record, script, sbatch, number: in this order, so that death between any two loses and doubles nothing."""
    resources = _resources(
        cluster, time_min=cluster["time_min"], memory_gb=cluster["memory_gb"], gpus=cluster["gpus"], cpus=cpus(cluster)
    )
    keys = ("threads", "ranks", "retries", "requeues")
    target = submissions.record(ledger, sweep_id, members, {k: cluster[k] for k in keys})
    parallel = max(1, cluster["max_parallel"] // arrays) if cluster["max_parallel"] else None
    command = _command("sweeps.slurm_task", target)
    text = script(
        command, resources, name=submissions.job_name(target), folder=target, count=len(members), max_parallel=parallel
    )
    write_text(target / "array.sbatch", text)
    job = hand_in(target / "array.sbatch", resources, keep_open=[held])
    submissions.record_job(target, job)
    return job


def _send_report(
    ledger: Ledger, sweep_id: str, cluster: Mapping[str, Any], queue: Sequence[client.Task], *, ship: bool,
    fresh: Sequence[str], held: int,
) -> str:  # fmt: skip
    """The job that ships and reports after all jobs of the sweep; "" if one waits already, or none is needed.

    Asked of the queue like all else: a submitter that died before this line is made good by the same command.
    """
    name, tasks = f"{submissions.PREFIX}report-{sweep_id}", submissions.by_run(ledger, queue)
    running = {tasks[r].job.split("_")[0] for r in ledger.sweep(sweep_id).run_ids if r in tasks} | set(fresh)
    if not running or (not fresh and any(task.name == name for task in queue)):
        return ""
    target = ledger.sweep_dir(sweep_id)
    command = _command("sweeps.slurm_report", target) + (["--ship"] if ship else [])
    resources = _resources(cluster, time_min=min(60, cluster["time_min"]), memory_gb=REPORT_GB, cpus=1)
    text = script(command, resources, name=name, folder=target, count=None, after=sorted(running))
    write_text(target / "report.sbatch", text)
    try:
        return hand_in(target / "report.sbatch", resources, keep_open=[held])
    except ValueError as error:  # the runs are what matters: they have their jobs
        print(f"no report at the end: {error} `python -m analysis` builds it.", file=sys.stderr, flush=True)
        return ""


def cpus(cluster: Mapping[str, Any]) -> int:
    """CPUs of a run's job: as asked for, else a core for each thread and one for verifiers."""
    return cluster["cpus"] or cluster["threads"] * cluster["ranks"] + 1


def _resources(cluster: Mapping[str, Any], **amounts: Any) -> Resources:
    """These amounts, where and on whose account the runs go."""
    shared = {key: cluster[key] for key in ("partition", "account", "qos")}
    return Resources(**amounts, **shared, setup=tuple(cluster["setup"]))


def _command(module: str, target: Path) -> list[str]:
    """Run a module of this package, as the submitter sees it, wherever the job starts."""
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return ["env", f"PYTHONPATH={path}", sys.executable, "-m", module, str(target)]


# --- wait=true


def _follow(ledger: Ledger, sweep_id: str, done: Submitted, command: Sequence[str] | None) -> Outcome:
    """A live table until no run waits or runs. Ctrl-C stops looking, not the jobs."""
    from rich.console import Console
    from rich.live import Live

    run_ids = ledger.sweep(sweep_id).run_ids
    shipper = Shipper(command, ledger.sweep_dir(sweep_id) / "shipper.log") if command else None
    began = time.monotonic()
    states = joined(ledger, ledger.states(run_ids))
    try:
        with Live(console=Console(), auto_refresh=False) as live:
            while any(state.state in ("queued", "running") for state in states) and not _abandoned(ledger, states):
                live.update(table(states, title=f"{sweep_id}: {count(states)}"), refresh=True)
                time.sleep(LOOK_S)
                states = joined(ledger, ledger.states(run_ids))
            live.update(table(states, title=f"{sweep_id}: {count(states)}"), refresh=True)
    except KeyboardInterrupt:
        print("No longer looking; the jobs go on. `python -m sweeps watch` looks again.", flush=True)
        return done
    outcome = _outcome(states, done)
    outcome.seconds = time.monotonic() - began
    if shipper and (trouble := shipper.finish(SHIPPER_S, hurry=lambda: False)):
        print(trouble, flush=True)
    for state in states:
        if state.run_id in outcome.messages:
            print(f"FAILED {state.name} ({state.run_id}): {why(state)}\n       {state.log or ''}", flush=True)
    print(outcome.summary(), flush=True)
    return outcome


def _abandoned(ledger: Ledger, states: Sequence[RunState]) -> bool:
    """Only queued runs are left, and SLURM, asked again, has a job for none of them: they were cancelled."""
    if any(state.state == "running" for state in states):
        return False
    queue = submissions.read_queue(ledger)
    return queue.answered and not any(state.run_id in queue.tasks for state in states)


def _outcome(states: Sequence[RunState], done: Submitted) -> Outcome:
    by_state: dict[str, list[str]] = {}
    for state in states:
        by_state.setdefault(state.state, []).append(state.run_id)
    failed = by_state.get("failed", []) + by_state.get("lost", [])
    return Outcome(
        finished=[r for r in by_state.get("finished", []) if r not in done.skipped], failed=failed,
        preempted=by_state.get("preempted", []), pruned=by_state.get("pruned", []), skipped=done.skipped,
        queued=by_state.get("queued", []),
        messages={state.run_id: why(state) for state in states if state.run_id in failed},
    )  # fmt: skip


# --- cancel


def cancel(ledger: Ledger, run_ids: Sequence[str]) -> list[str]:
    """End the jobs of these runs; they save first. Returns the runs that had one."""
    tasks = submissions.by_run(ledger, client.queue(submissions.PREFIX))
    found = [run_id for run_id in run_ids if run_id in tasks]
    client.cancel([tasks[run_id].job for run_id in found])
    return found
