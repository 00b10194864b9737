"""The last job of a sweep, which ships metrics, builds the report and submits the next wave."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.ledger.sweeps import Ledger, grows
from slurm import client
from slurm.submit import QueueFull
from sweeps.slurm import jobs, submissions

REPORT_GB = 4.0


def report_at_end(
    ledger: Ledger,
    sweep_id: str,
    cluster: Mapping[str, Any],
    queue: Sequence[client.QueuedTask],
    *,
    fresh: Sequence[str],
    held: int,
    is_owed: bool,
) -> str | None:
    """Submit the job that ships and reports after all jobs of the sweep. Returns its number; "" if one waits already,
    or none is needed, or SLURM refuses it, as the jobs of the runs must not fail for it; None if the queue has no room.

    fresh: jobs of the sweep that are not in `queue` yet. held: the lock. is_owed: it is needed even if all of the jobs
    have ended, because the queue had no room before, for it or for runs that another sweep has finished since.

    This is decided by the queue: if a submitter was killed before this function, the same command submits the report.
    """
    tasks, waiting = submissions.by_run(ledger, queue), submissions.by_kind(ledger, queue, "report")
    running = {tasks[r].job.split("_")[0] for r in ledger.sweep(sweep_id).run_ids if r in tasks} | set(fresh)
    job = ""
    if (running or is_owed) and (fresh or sweep_id not in waiting):
        try:
            job = submissions.send(
                ledger,
                sweep_id,
                "report",
                {"report": sweep_id},
                jobs.resources(cluster, time_min=min(60, cluster["time_min"]), memory_gb=REPORT_GB, cpus=1),
                held=held,
                folder=ledger.sweep_dir(sweep_id),
                count=None,
                requeues=cluster["requeues"],
                after_any=sorted(running),
            )
        except QueueFull:
            return None
        except ValueError as error:
            text = f"no report at the end: {error} `python -m analysis` builds it."
            if grows(ledger.sweep(sweep_id).info):
                text += f" The next wave needs it: repeat the launch, or `python -m sweeps retry {sweep_id}`."
            print(text, file=sys.stderr, flush=True)
    return job
