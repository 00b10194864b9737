"""Launches a plan: writes it to the ledger, then starts it on SLURM or on this machine. Relaunches from the ledger."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from rlvr.config import targets
from rlvr.config.engine import gpus_of_workers
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.layout import home
from rlvr.ledger.runs import Unreadable, check_owner, lines_by_reason, read_info, read_verified_config
from rlvr.ledger.sweeps import Ledger, grows
from sweeps import before_launch, controls, expected, session
from sweeps.growing import controller, forecast, planning
from sweeps.growing.record import Record
from sweeps.local import Outcome, run_local
from sweeps.naming import RunNames
from sweeps.plan import Plan, plan, with_unique_names, write
from sweeps.planned import seed_by_seed
from sweeps.session import Launch
from sweeps.slurm.launch import check_pending, run_slurm
from sweeps.slurm.submissions import may_have_jobs
from sweeps.sync import sync_in_background, tracker_of
from sweeps.worker import shipper_command, store_options


def launch_points(master: DictConfig, overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Compose every point of a sweep, check all of them, and only then start anything.

    master: the config that Hydra composed for the command. Returns a JobReturn for each point, as Hydra requires.
    """
    current = session.current()
    if grows(master):
        outcome = launch_growing(master, overrides)
    else:
        planning.check(master, evaluates=current.adapt is not None)
        added = controls_of(master, overrides)
        points = current.adapted(current.points(master, [*overrides, *(words for words, _ in added)]))
        planned = plan(points, command=current.command, checker=current.checker)
        if current.adapt is None:  # an evaluation has no claims
            _check_expected(planned)
        outcome = launch(_with_controls(planned, [control for _, control in added]))
    return [_job_return(outcome) for _ in overrides]


def _check_expected(planned: Plan) -> None:
    """ValueError for an expectation that no run can test; printed warnings for those that only these runs cannot."""
    current = session.current()
    for line in expected.check(planned, Ledger(home()), current.registry, current.typed):
        print(line, file=sys.stderr)


def controls_of(master: DictConfig, overrides: Sequence[Sequence[str]]) -> list[tuple[list[str], str]]:
    """(overrides, control) of the points that `controls=` adds."""
    if not master.controls:
        return []
    usual = session.current().usual(master)
    return controls.added(overrides, str(master.controls), str(master.baseline or ""), usual)


def _with_controls(planned: Plan, added: Sequence[str]) -> Plan:
    """The plan with its last runs marked by their controls. Only `seeds` is marked: the config does not show it.

    added: the control of each of the last runs.
    """
    first = len(planned.runs) - len(added)
    marks = ["" if control != controls.SEEDS else control for control in added]
    runs = [replace(run, control=mark) for run, mark in zip(planned.runs[first:], marks, strict=True)]
    return replace(planned, runs=(*planned.runs[:first], *runs))


def launch_growing(master: DictConfig, overrides: Sequence[Sequence[str]]) -> Outcome:
    """Launch a sweep whose next runs depend on the results of those before (sweeps/growing)."""
    current, ledger = session.current(), Ledger(home())
    planning.check(master, evaluates=current.adapt is not None)
    added = controls_of(master, overrides)
    if controls.SEEDS in [control for _, control in added]:
        raise ValueError("controls=seeds needs fixed seeds, and until and tune add seeds. Drop it, or drop those.")

    def compose(words: Sequence[Sequence[str]]) -> Plan:
        composed = plan(current.points(master, words), command=current.command, checker=current.checker)
        return with_unique_names(composed, RunNames(ledger))

    record, first = planning.planned(master, [*overrides, *(words for words, _ in added)], ledger, compose)
    on_slurm = before_launch.is_for_slurm(master.cluster.backend)
    all_runs = replace(first, runs=tuple(candidate.run for candidate in record.candidates))
    before_launch.check_launch(
        all_runs,
        ledger,
        master.tracker,
        current.registry,
        typed=current.typed,
        on_slurm=on_slurm,
        dry_run=current.dry_run,
    )
    _check_expected(all_runs)
    outcome, forecast_lines = Outcome(), tuple[str, ...]()
    if current.dry_run:
        forecast_lines = tuple(forecast.lines(record))
    else:
        configs = {run.run_id: run.config for run in all_runs.runs}
        if on_slurm:
            check_pending(ledger, configs)
        with _forgotten_if_refused(ledger, record.sweep_id, configs):
            with controller.deciding_lock_held(ledger, record.sweep_id, controller.LOCK_S if on_slurm else 0.0):
                record.write()
            outcome = _continue_growing(ledger, record.sweep_id)
    dry_run = current.dry_run
    current.launches.append(Launch(first, outcome, on_slurm=on_slurm, dry_run=dry_run, forecast=forecast_lines))
    return outcome


def _continue_growing(ledger: Ledger, sweep_id: str, *, unless_cancelled: bool = False) -> Outcome:
    """Run all waves on this machine; on SLURM submit the next wave only: the last of its jobs calls this again."""
    run = Record.read(ledger, sweep_id).candidates[0].run
    targets.make_importable(run.import_paths, run.config)
    first = OmegaConf.create(dict(run.config))

    def start() -> Outcome:
        configs = Record.read(ledger, sweep_id).configs
        begun = ledger.states(configs)
        run_ids = [state.run_id for state in begun if state.state is not State.DIVERGED]  # divergence is a result
        cluster = first.cluster
        return _start(
            ledger, sweep_id, configs, cluster, on_slurm=on_slurm, run_ids=run_ids, unless_cancelled=unless_cancelled
        )

    on_slurm = before_launch.is_for_slurm(first.cluster.backend)
    if not on_slurm:
        return controller.grow(ledger, sweep_id, start)
    with controller.deciding_lock_held(ledger, sweep_id, controller.LOCK_S):
        wanted = controller.advance(ledger, sweep_id)
    return start() if wanted else Outcome(skipped=ledger.sweep(sweep_id).run_ids)


def launch(planned: Plan) -> Outcome:
    """Write the plan to the ledger and start its unfinished runs. A dry run only adds the plan to the session."""
    current, ledger = session.current(), Ledger(home())
    planned = with_unique_names(planned, RunNames(ledger))
    first = OmegaConf.create(dict(planned.runs[0].config))
    cluster, tracker = first.cluster, first.tracker
    on_slurm = before_launch.is_for_slurm(cluster.backend)
    before_launch.check_launch(
        planned, ledger, tracker, current.registry, typed=current.typed, on_slurm=on_slurm, dry_run=current.dry_run
    )
    outcome = Outcome()
    if not current.dry_run:
        configs = {run.run_id: run.config for run in planned.runs}
        if on_slurm:
            check_pending(ledger, configs)
        with _forgotten_if_refused(ledger, planned.sweep_id, configs):
            write(planned, ledger)
            outcome = _start(ledger, planned.sweep_id, configs, cluster, on_slurm=on_slurm)
    current.launches.append(Launch(planned, outcome, on_slurm=on_slurm, dry_run=current.dry_run))
    return outcome


@contextlib.contextmanager
def _forgotten_if_refused(ledger: Ledger, sweep_id: str, run_ids: Collection[str]) -> Generator[None, None, None]:
    """If the launch of a new sweep raises ValueError before any run has begun or may have a job, remove the sweep from
    the ledger, and the runs that this launch has written there.
    """
    is_new = not ledger.sweep_dir(sweep_id).exists()
    try:
        yield
    except controller.AlreadyDeciding:
        raise
    except ValueError:
        if is_new:
            have_jobs = may_have_jobs(ledger, run_ids)
            if not have_jobs and not any(newest_attempt(ledger.run_dir(run_id)) for run_id in ledger.created_runs):
                ledger.withdraw_sweep(sweep_id)
            elif have_jobs:
                print(
                    f"Sweep {sweep_id} is kept, because it may have jobs: see `python -m sweeps status`. The same "
                    "command submits the rest alone.",
                    file=sys.stderr,
                )
        raise


def relaunch(ledger: Ledger, sweep_id: str, run_id: str | None = None, *, unless_cancelled: bool) -> Outcome:
    """Launch the unfinished runs of a sweep from their configs on the ledger: the command need not be known.

    Pruned runs are left out, unless one is named: their search has judged them, and no pruner would stop them again.
    run_id: launch this run of the sweep alone.
    unless_cancelled: raise ValueError for a sweep whose SLURM jobs its user has cancelled.
    """
    check_owner(ledger.sweep_dir(sweep_id))
    if run_id is None and grows(ledger.sweep(sweep_id).info):
        return _continue_growing(ledger, sweep_id, unless_cancelled=unless_cancelled)
    wanted = _all_but_pruned(ledger, sweep_id) if run_id is None else [run_id]
    if not wanted:
        return Outcome()
    configs: dict[str, dict[str, Any]] = {}
    errors: list[Unreadable] = []
    for wanted_id in wanted:
        run_dir = ledger.run_dir(wanted_id)
        try:
            check_owner(run_dir)
            configs[wanted_id] = read_verified_config(run_dir)
        except Unreadable as error:
            errors.append(error)
        else:
            targets.make_importable(read_info(run_dir).import_paths, configs[wanted_id])
    if errors and len(wanted) == 1:
        raise errors[0]
    for line in lines_by_reason(errors):
        print(line, file=sys.stderr)
    if not configs:
        raise ValueError(f"no run of sweep {sweep_id} can be started again.")
    # A finished run keeps the config that it was trained with: the others have the settings of the newest launch.
    finished = {state.run_id for state in ledger.states(configs) if state.state is State.FINISHED}
    newest = next((run_id for run_id in configs if run_id not in finished), next(iter(configs)))
    first = OmegaConf.create(configs[newest])
    on_slurm = before_launch.is_for_slurm(first.cluster.backend)
    cluster = first.cluster
    return _start(
        ledger, sweep_id, configs, cluster, on_slurm=on_slurm, run_ids=wanted, unless_cancelled=unless_cancelled
    )


def _all_but_pruned(ledger: Ledger, sweep_id: str) -> list[str]:
    """The runs of a sweep that no pruner has ended; a message counts the others."""
    states = ledger.states(ledger.sweep(sweep_id).run_ids)
    kept = [state.run_id for state in states if state.state is not State.PRUNED]
    if pruned := len(states) - len(kept):
        print(
            f"{pruned} pruned run{'s stay' if pruned > 1 else ' stays'} so: `retry RUN` trains one on.", file=sys.stderr
        )
    return kept


def _start(
    ledger: Ledger,
    sweep_id: str,
    configs: Mapping[str, Mapping[str, Any]],
    cluster: Any,
    *,
    on_slurm: bool,
    run_ids: Collection[str] | None = None,
    unless_cancelled: bool = False,
) -> Outcome:
    """Start runs that are on the ledger.

    configs: the frozen config of each run; cluster: the config group `cluster` of the launch; run_ids: runs of the
    sweep to start; None: all.
    """
    run_ids = seed_by_seed(configs if run_ids is None else run_ids, configs)
    shipper = shipper_of(ledger, sweep_id, OmegaConf.create(dict(tracker_of(ledger, ledger.sweep(sweep_id)))))
    before_launch.warn_of_timing(configs)
    before_launch.warn_of_changed_inputs(ledger, configs)
    if on_slurm:
        return run_slurm(
            ledger,
            sweep_id,
            configs,
            run_ids=run_ids,
            shipper=shipper,
            wait=cluster.wait,
            unless_cancelled=unless_cancelled,
        )
    before_launch.warn_of_slow_numbers(configs)
    return run_local(
        ledger,
        sweep_id,
        run_ids=run_ids,
        workers=cluster.workers,
        threads=cluster.threads,
        ranks=cluster.ranks,
        engine_gpus=max((gpus_of_workers(config["rollout"]["engine"]) for config in configs.values()), default=0),
        retries=cluster.retries,
        hung_min=cluster.hung_min,
        shipper=shipper,
    )


def shipper_of(ledger: Ledger, sweep_id: str, tracker: Any) -> list[str] | None:
    """Command that ships a sweep's metrics while it runs; None for tracker=none."""
    if not tracker.enabled:
        return None
    before_launch.warn_of_unreachable_store(ledger, tracker.uri)
    sync_in_background(ledger)  # metrics that earlier launches could not ship, each to its own store
    return shipper_command(ledger.home, "--sweep", sweep_id, "--follow", *store_options(tracker.uri))


def _job_return(outcome: Outcome) -> JobReturn:
    result = JobReturn()
    result.return_value = outcome
    result.status = JobStatus.COMPLETED
    return result
