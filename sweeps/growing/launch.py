"""Launches a growing sweep, and continues it from the ledger."""

from collections.abc import Sequence

from omegaconf import DictConfig

from rlvr.config import targets
from rlvr.ledger.cause import State
from rlvr.ledger.layout import home
from rlvr.ledger.sweeps import Ledger
from sweeps import before_launch, controls, session
from sweeps.growing import controller, planning
from sweeps.growing.record import GrowingRecord, deciding_lock_held
from sweeps.plan import Plan, plan, with_unique_names
from sweeps.session import Launch
from sweeps.slurm.launch import check_pending
from sweeps.start import forgotten_if_refused, start
from sweeps.verdict import LaunchOutcome

LOCK_S = 60.0  # longest wait on SLURM for the lock under which the next wave is decided


def launch_growing(master: DictConfig, overrides: Sequence[Sequence[str]], added: Sequence[str]) -> LaunchOutcome:
    """Launch a sweep whose next runs depend on the results of those before. added: the controls of the last points."""
    current, ledger = session.current(), Ledger(home())
    if controls.SEEDS in added:
        raise ValueError("controls=seeds needs fixed seeds, and until and tune add seeds. Drop it, or drop those.")

    def compose(points: Sequence[Sequence[str]]) -> Plan:
        composed = plan(current.points(master, points), command=current.command, checker=current.checker)
        return with_unique_names(composed, ledger)

    record, first = planning.planned(master, overrides, ledger, compose)
    all_runs = planning.plan_of(record, record.candidates)
    on_slurm = before_launch.check_launch(all_runs, ledger, current)
    before_launch.check_expected(all_runs, ledger, current)
    if current.dry_run:
        lines = tuple(planning.forecast(record))
        current.launches.append(Launch(first, LaunchOutcome(), on_slurm=on_slurm, dry_run=True, forecast=lines))
        return LaunchOutcome()
    configs = {run.run_id: run.config for run in all_runs.runs}
    if on_slurm:
        check_pending(ledger, configs)
    with forgotten_if_refused(ledger, record.sweep_id, configs):
        with deciding_lock_held(ledger, record.sweep_id, LOCK_S if on_slurm else 0.0):
            record.write()
        outcome = continue_growing(ledger, record.sweep_id)
    current.launches.append(Launch(first, outcome, on_slurm=on_slurm, dry_run=False))
    return outcome


def continue_growing(ledger: Ledger, sweep_id: str, *, unless_cancelled: bool = False) -> LaunchOutcome:
    """Run all waves on this machine; on SLURM submit the next wave only: the last of its jobs calls this again."""
    run = GrowingRecord.read(ledger, sweep_id).candidates[0].run
    targets.make_importable(run.import_paths, run.config)

    def start_wave() -> LaunchOutcome:
        configs = GrowingRecord.read(ledger, sweep_id).configs
        begun = ledger.states(configs)
        run_ids = [state.run_id for state in begun if state.state is not State.DIVERGED]  # divergence is a result
        return start(ledger, sweep_id, configs, run_ids=run_ids, unless_cancelled=unless_cancelled)

    if not before_launch.is_for_slurm(run.config["cluster"]["backend"]):
        return controller.grow(ledger, sweep_id, start_wave)
    with deciding_lock_held(ledger, sweep_id, LOCK_S):
        is_wanted = controller.advance(ledger, sweep_id)
    return start_wave() if is_wanted else LaunchOutcome(skipped=ledger.sweep(sweep_id).run_ids)
