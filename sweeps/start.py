"""Starts runs that are on the ledger, on SLURM or on this machine; and what is undone if they are refused."""

import contextlib
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

from rlvr.config.engine import gpus_of_workers
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import Ledger
from sweeps import before_launch
from sweeps.growing.record import AlreadyDeciding
from sweeps.local import run_local
from sweeps.planned import seed_by_seed
from sweeps.slurm.follow import follow
from sweeps.slurm.launch import submit
from sweeps.slurm.submissions import may_have_jobs
from sweeps.sync import sync_in_background, tracker_of
from sweeps.verdict import LaunchOutcome
from sweeps.worker import shipper_command


def start(
    ledger: Ledger,
    sweep_id: str,
    configs: Mapping[str, Mapping[str, Any]],
    *,
    run_ids: Collection[str] | None = None,
    unless_cancelled: bool = False,
) -> LaunchOutcome:
    """Start runs of a sweep, and on this machine wait for their end.

    configs: frozen, by run id. run_ids: runs of the sweep to start; None: all of `configs`.
    unless_cancelled: raise ValueError for a sweep whose SLURM jobs its user has cancelled.
    """
    run_ids = seed_by_seed(configs if run_ids is None else run_ids, configs)
    # A finished run keeps the config that it was trained with: the others have the settings of the newest launch.
    unfinished = (state.run_id for state in ledger.states(configs) if state.state is not State.FINISHED)
    cluster = configs[next(unfinished, next(iter(configs)))]["cluster"]
    shipper = shipper_of(ledger, sweep_id, tracker_of(ledger, ledger.sweep(sweep_id)))
    before_launch.warn_of_timing(configs)
    before_launch.warn_of_changed_inputs(ledger, configs)
    if before_launch.is_for_slurm(cluster["backend"]):
        before_launch.warn_of_weak_locks(ledger.home)
        of_sweep = {*ledger.sweep(sweep_id).run_ids}
        run_ids = [run_id for run_id in run_ids if run_id in of_sweep]
        runs = [(run_id, configs[run_id]) for run_id in run_ids if run_id in configs]
        submitted = submit(ledger, sweep_id, runs, unless_cancelled=unless_cancelled)
        print(submitted.summary(), flush=True)
        if unless_cancelled or not cluster["wait"]:  # a job submits and ends: it must not wait in its own allocation
            return submitted
        # Who waits ships meanwhile; otherwise the report's job does.
        return follow(ledger, sweep_id, run_ids, submitted.skipped, shipper) or submitted
    before_launch.warn_of_slow_numbers(configs)
    return run_local(
        ledger,
        sweep_id,
        run_ids=run_ids,
        workers=cluster["workers"],
        threads=cluster["threads"],
        ranks=cluster["ranks"],
        engine_gpus=max((gpus_of_workers(config["rollout"]["engine"]) for config in configs.values()), default=0),
        retries=cluster["retries"],
        hung_min=cluster["hung_min"],
        shipper=shipper,
    )


def shipper_of(ledger: Ledger, sweep_id: str, tracker: Mapping[str, Any]) -> list[str] | None:
    """Command that ships a sweep's metrics while it runs; None for tracker=none. tracker: group of its config."""
    if not tracker.get("enabled"):
        return None
    before_launch.warn_of_unreachable_store(ledger, tracker["uri"])
    sync_in_background(ledger)  # metrics that earlier launches could not ship, each to its own store
    return shipper_command(ledger.home, "--sweep", sweep_id, "--follow", uri=tracker["uri"])


@contextlib.contextmanager
def forgotten_if_refused(
    ledger: Ledger, sweep_id: str, run_ids: Collection[str], *, undo: Callable[[], None] = lambda: None
) -> Generator[None, None, None]:
    """If the launch of a new sweep is refused before any run has begun or may have a job, remove the sweep from
    the ledger, and the runs that this launch has written there, and call `undo`.
    """
    is_new = not ledger.sweep_dir(sweep_id).exists()
    try:
        yield
    except AlreadyDeciding:
        raise
    except (ValueError, PermissionError):
        if is_new:
            have_jobs = may_have_jobs(ledger, run_ids)
            if not have_jobs and not any(newest_attempt(ledger.run_dir(run_id)) for run_id in ledger.created_runs):
                ledger.withdraw_sweep(sweep_id)
                if not ledger.sweep_dir(sweep_id).exists():  # else another command has recorded it, too
                    undo()
            elif have_jobs:
                print(
                    f"Sweep {sweep_id} is kept, because it may have jobs: see `python -m sweeps status`. The same "
                    "command submits the rest alone.",
                    file=sys.stderr,
                )
        raise
