"""Launches a plan: writes it to the ledger, then starts its runs. Relaunches from the ledger."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from rlvr.config.overrides import parse
from rlvr.ledger.cause import State
from rlvr.ledger.identity import GRID_KEYS
from rlvr.ledger.layout import home
from rlvr.ledger.runs import check_owner, lines_by_reason
from rlvr.ledger.sweeps import Ledger, grows
from sweeps import before_launch, controls, grid, session
from sweeps.plan import Plan, plan, with_unique_names, write
from sweeps.planned import read_launchable
from sweeps.session import Launch
from sweeps.slurm.launch import check_pending
from sweeps.start import forgotten_if_refused, start
from sweeps.verdict import LaunchOutcome


class GridSweep:
    """`hydra/sweeper=grid`: lists and ranges, shaped by also, zip, exclude and when (docs/sweeps.md)."""

    def __init__(self, config: DictConfig, params: Mapping[str, str] | None = None) -> None:
        """config: as Hydra composed it for the command. params: the axes of the study, by key."""
        self.config, self.params = config, params or {}

    def sweep(self, arguments: Sequence[str]) -> list[JobReturn]:
        return launch_points(self.config, self.points(arguments))

    def points(self, arguments: Sequence[str]) -> list[list[str]]:
        overrides = parse([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        rules = grid.Rules(**{name: list(self.config[name]) for name in GRID_KEYS})
        return grid.expand(overrides, self.params, rules, session.current().usual(self.config))


def launch_points(master: DictConfig, overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Compose every point of a sweep, check all of them, and only then start anything.

    master: the config that Hydra composed for the command. Returns a JobReturn for each point, as Hydra requires.
    """
    current = session.current()
    before_launch.check_sweep_keys(master, evaluates=current.adapt is not None)
    added = controls_of(master, overrides)
    overrides_of_all = [*overrides, *(typed for typed, _ in added)]
    if grows(master):
        from sweeps.growing.launch import launch_growing  # imports pandas, as does what it plans

        outcome = launch_growing(master, overrides_of_all, [control for _, control in added])
    else:
        composed = current.points(master, overrides_of_all)
        points = composed if current.adapt is None else current.adapt(composed)
        planned = plan(points, command=current.command, checker=current.checker)
        if current.adapt is None:  # an evaluation has no claims
            before_launch.check_expected(planned, Ledger(home()), current)
        outcome = launch(_with_controls(planned, [control for _, control in added]))
    result = JobReturn()
    result.return_value, result.status = outcome, JobStatus.COMPLETED
    return [result for _ in overrides]


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
    marks = [*[""] * first, *(control if control == controls.SEEDS else "" for control in added)]
    runs = (replace(run, control=mark) for run, mark in zip(planned.runs, marks, strict=True))
    return replace(planned, runs=tuple(runs))


def launch(planned: Plan) -> LaunchOutcome:
    """Write the plan to the ledger and start its unfinished runs. A dry run only adds the plan to the session."""
    current, ledger = session.current(), Ledger(home())
    planned = with_unique_names(planned, ledger)
    on_slurm = before_launch.check_launch(planned, ledger, current)
    planned = planned if on_slurm else before_launch.with_all_cores(planned)
    outcome = LaunchOutcome()
    if not current.dry_run:
        configs = {run.run_id: run.config for run in planned.runs}
        if on_slurm:
            check_pending(ledger, configs)
        with forgotten_if_refused(ledger, planned.sweep_id, configs, undo=current.record()):
            write(planned, ledger)
            outcome = start(ledger, planned.sweep_id, configs)
    current.launches.append(Launch(planned, outcome, on_slurm=on_slurm, dry_run=current.dry_run))
    return outcome


def relaunch(ledger: Ledger, sweep_id: str, run_id: str | None = None, *, unless_cancelled: bool) -> LaunchOutcome:
    """Launch the unfinished runs of a sweep from their configs on the ledger: the command need not be known.

    Pruned runs are left out, unless one is named: their search has judged them, and no pruner would stop them again.
    run_id: launch this run of the sweep alone.
    unless_cancelled: raise ValueError for a sweep whose SLURM jobs its user has cancelled.
    """
    check_owner(ledger.sweep_dir(sweep_id))
    if run_id is None and grows(ledger.sweep(sweep_id).info):
        from sweeps.growing.launch import continue_growing

        return continue_growing(ledger, sweep_id, unless_cancelled=unless_cancelled)
    wanted = _all_but_pruned(ledger, sweep_id) if run_id is None else [run_id]
    if not wanted:
        return LaunchOutcome()
    configs, errors = read_launchable(ledger, wanted)
    if errors and len(wanted) == 1:
        raise errors[0]
    for line in lines_by_reason(errors):
        print(line, file=sys.stderr)
    if not configs:
        raise ValueError(f"no run of sweep {sweep_id} can be started again.")
    return start(ledger, sweep_id, configs, run_ids=wanted, unless_cancelled=unless_cancelled)


def _all_but_pruned(ledger: Ledger, sweep_id: str) -> list[str]:
    """The runs of a sweep that no pruner has ended; a message counts the others."""
    states = ledger.states(ledger.sweep(sweep_id).run_ids)
    kept = [state.run_id for state in states if state.state is not State.PRUNED]
    if pruned := len(states) - len(kept):
        print(
            f"{pruned} pruned run{'s stay' if pruned > 1 else ' stays'} so: `retry RUN` trains one on.", file=sys.stderr
        )
    return kept
