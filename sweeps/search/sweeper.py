"""Hydra's sweeper `hydra/sweeper=optuna`: a search over the swept keys instead of their grid (docs/optuna.md).

Optuna is imported only when a search starts: `--help` and grids do not need it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from rlvr.config.binding import bind, close_match
from rlvr.config.freeze import arm_name, run_name
from rlvr.config.imports import PACKAGES
from rlvr.config.overrides import key_of, parse
from rlvr.config.pairing import TaskAbilities
from rlvr.config.schema import as_dict
from rlvr.config.targets import packages
from rlvr.ledger import glossary, layout, terminal
from rlvr.ledger.identity import ADDED_ARMS, GROWTH, NOT_IDENTITY, hash_of, identity
from rlvr.ledger.layout import home
from rlvr.ledger.lock import PATIENCE_S, held_lock
from rlvr.ledger.sweeps import SEARCH, Ledger
from rlvr.metrics import EVALUATION, VALIDATION
from sweeps import before_launch, machine, session
from sweeps.naming import RunNames
from sweeps.plan import Plan, plan
from sweeps.planned import PlannedRun, evaluation_metric_names, evaluations
from sweeps.session import Launch
from sweeps.start import shipper_of
from sweeps.verdict import LaunchOutcome

if TYPE_CHECKING:
    from sweeps.search.space import SearchAxis, Space
    from sweeps.search.study import Goal

N_TRIALS = 20


@dataclass
class Searched(LaunchOutcome):
    """The outcome of a search. Failed trials are normal; a search without any value, or not yet done, is a failure."""

    complete: int = 0  # trials with a value
    done: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return terminal.INTERRUPTED
        return 0 if self.done and self.complete else 1


class SearchSweep:
    """Checks everything that can be checked, then runs the controller (sweeps/search/controller.py)."""

    def __init__(
        self,
        config: DictConfig,
        *,
        metrics: str | Sequence[str] | None,
        directions: str | Sequence[str] | None,
        n_trials: int | None,
        n_jobs: int | None,
        retries: int,
        sampler: DictConfig,
        pruner: DictConfig,
        params: Mapping[str, str] | None,
    ) -> None:
        """config: as Hydra composed it for the command; the others: see conf/hydra/sweeper/optuna.yaml."""
        self.base, self.session = config, session.current()
        self.points = self.session.points(config, [])
        self.metrics, self.directions, self.params = _as_list(metrics), _as_list(directions), dict(params or {})
        self.n_trials, self.n_jobs, self.retries = n_trials, n_jobs, retries
        self.sampler, self.pruner = sampler, pruner

    def sweep(self, arguments: list[str]) -> list[dict[str, Any]]:
        """Search; returns the best trials."""
        from sweeps.search.space import search_space

        overrides = parse([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        space = search_space(overrides, list(self.base.when), self.session.usual(self.base))
        self.swept = [key_of(axis.key) for axis in space.axes]
        self.names = RunNames(Ledger(home()))
        self._check()
        goal = self._goal(space.axes)
        self.study = self.base.hydra.runtime.choices.get("study") or self.base.name or SEARCH
        on_slurm = before_launch.is_for_slurm(self.base.cluster.backend)
        at_once = min(self._at_once(on_slurm=on_slurm), goal.n_trials)
        sweep_id, first = self._sweep_id(space, goal), self._first_runs(space, goal, at_once)
        question = self.session.registry.question(self.study)
        folders = self.session.registry.folders
        planned = Plan(sweep_id, self.study, self.session.command, tuple(first), question, folders)
        before_launch.check_launch(planned, Ledger(home()), self.session, n_jobs=self.n_jobs)
        if self.session.dry_run:
            axes = "  ".join(f"{axis.key}={axis.typed}" for axis in space.axes)
            print(f"Search {sweep_id}: {goal.n_trials} trials of {axes}, {at_once} at a time. The first ones:")
            self.session.launches.append(Launch(planned, LaunchOutcome(), on_slurm=on_slurm, dry_run=True))
            return []
        return self._search(Ledger(home()), planned, space, goal, at_once, on_slurm=on_slurm)

    # --- checks

    def _check(self) -> None:
        for name, least in {"n_trials": 1, "n_jobs": 1, "retries": 0}.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"hydra.sweeper.{name}={value} must be a whole number, {least} or more.")
        allowed = "maximize or minimize"
        if unknown := [way for way in self.directions if way not in ("maximize", "minimize")]:
            raise ValueError(f"hydra.sweeper.directions={unknown[0]} must be {allowed}.")
        if not self.metrics:
            known = evaluation_metric_names(self.base)
            size, example = self.base.evaluation.validation or 256, known[0]
            if TaskAbilities.of(instantiate(self.base.task), None).validates:
                example = f"{VALIDATION}{known[0].partition('/')[2]} evaluation.validation={size}"
            raise ValueError(
                f"no metric to optimise is set: pass hydra.sweeper.metrics={example} hydra.sweeper.directions="
                f"maximize. Evaluations measure {', '.join(known)}; the metrics of training steps are allowed, too."
            )
        if len(self.directions) != len(self.metrics):
            raise ValueError(
                f"hydra.sweeper.directions=[{','.join(self.directions)}] for hydra.sweeper.metrics="
                f"[{','.join(self.metrics)}]: pass {allowed} for each metric."
            )
        if useless := [key for key in self.swept if key.split(".")[0] in NOT_IDENTITY]:
            raise ValueError(f"{useless[0]} changes no result, so it cannot be searched. Give it one value.")
        for line in ("also", "zip", "exclude"):
            if self.base[line]:
                raise ValueError(
                    f"{line} shapes a grid, not a search. Drop it, or pass {line}=[] where a study sets it; `when` "
                    "makes an axis conditional."
                )
        for key in (*GROWTH, *ADDED_ARMS):
            if self.base[key]:
                raise ValueError(f"{key} works with a grid, not with a search. Drop it, or drop hydra/sweeper.")
        bind("hydra.sweeper.sampler", self.sampler)
        bind("hydra.sweeper.pruner", self.pruner)

    def _goal(self, axes: Sequence[SearchAxis]) -> Goal:
        import optuna

        from sweeps.search import sampler as samplers
        from sweeps.search.study import Goal

        make = instantiate(self.sampler, _partial_=True)

        def sampler(trial: int, axis: int) -> optuna.samplers.BaseSampler:
            return make(samplers.SampledParameter(axes, len(self.metrics), trial, axis))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            pruner = instantiate(self.pruner)
        if len(self.metrics) > 1 and not isinstance(pruner, optuna.pruners.NopPruner):
            raise ValueError("a pruner compares one metric: with several pass hydra/sweeper/pruner=none.")
        n_trials = self.n_trials or N_TRIALS
        if isinstance(sampler(0, 0), optuna.samplers.GridSampler):
            n_trials = min(self.n_trials or samplers.size(axes), samplers.size(axes))
        directions: list[Literal["maximize", "minimize"]] = [
            "maximize" if way == "maximize" else "minimize" for way in self.directions
        ]
        return Goal(self.metrics, directions, sampler, pruner, n_trials, self.retries)

    def _sweep_id(self, space: Space, goal: Goal) -> str:
        """8 hexadecimal digits of a hash of all that defines the search, so that the same command continues it. The
        number of trials is left out: it may grow.
        """
        base = as_dict(self.base)
        parts = {
            "config": identity({key: value for key, value in base.items() if key != "hydra"}),
            "fixed": sorted(o for key, o in space.fixed.items() if key.split(".")[0] not in NOT_IDENTITY),
            "axes": sorted(f"{axis.key}={axis.typed}" for axis in space.axes),
            "when": list(self.base.when),
            "metrics": goal.metrics,
            "directions": goal.directions,
            "sampler": OmegaConf.to_container(self.sampler),
            "pruner": OmegaConf.to_container(self.pruner),
        }
        return hash_of(parts, 8)

    def _at_once(self, *, on_slurm: bool) -> int:
        from sweeps.search.runs import SLURM_AT_ONCE

        cluster = self.base.cluster
        if on_slurm:
            return self.n_jobs or cluster.max_parallel or SLURM_AT_ONCE
        typed = self.n_jobs or cluster.workers
        try:
            return machine.at_once(typed, cluster.threads, cluster.ranks, machine.gpus_of(self.base))
        except ValueError:
            if not self.session.dry_run:
                raise
            return typed or 1  # a dry run for another machine

    def _first_runs(self, space: Space, goal: Goal, count: int) -> list[PlannedRun]:
        """The runs of the first trials, planned in memory, so that an error in all of them is raised before anything is
        written. ValueError if none of them is a legal run.
        """
        from sweeps.search.study import study_in_memory, suggest

        study, runs, errors = study_in_memory(goal), dict[str, PlannedRun](), list[ValueError]()
        for number in range(count):
            study.sampler = goal.sampler(number, 0)
            overrides = suggest(study, study.ask(), space, goal)
            try:
                run = self._plan_point(overrides)
            except ValueError as error:
                errors.append(error)
            else:
                self._check_metrics(run)
                runs[run.run_id] = run
        if not runs:
            raise errors[0]
        return list(runs.values())

    def _plan_point(self, overrides: Sequence[str]) -> PlannedRun:
        """The run of a trial. In its name numbers are rounded to four digits; in its config they are not."""
        point = self.points.full(list(overrides))
        (run,) = plan([point], command=self.session.command, checker=self.session.checker).runs
        short = [_short(override) for override in run.overrides]
        arm = arm_name(run.config, short, self.swept)
        return self.names.give(replace(run, name=run_name(arm, run.config), arm=arm))

    def _check_metrics(self, run: PlannedRun) -> None:
        """ValueError for a metric that no evaluation measures, or that neither we log nor a component of the user can.
        Whether a run logs it is checked at its first training step (controller.py).
        """
        (measured,) = evaluations([run])
        if measured is None:  # a dry run without data
            return
        known, _ = measured
        ours = packages(run.config) <= {*PACKAGES}
        for name in self.metrics:
            of_evaluation = name.startswith((EVALUATION, VALIDATION))
            if (of_evaluation and name not in known) or (ours and glossary.entry(name) is None):
                others = [] if of_evaluation else [e.name for e in glossary.entries() if "<" not in e.name]
                near = close_match(name, [*known, *others])
                raise ValueError(f"no run measures {name}.{near} Evaluations measure {', '.join(known)}.")

    # --- the search

    def _search(
        self, ledger: Ledger, planned: Plan, space: Space, goal: Goal, at_once: int, *, on_slurm: bool
    ) -> list[dict[str, Any]]:
        from sweeps.search.controller import Search
        from sweeps.search.report import report
        from sweeps.search.runs import LocalRuns, SlurmRuns
        from sweeps.search.study import open_study

        sweep_id = planned.sweep_id
        target, began = ledger.sweep_dir(sweep_id), time.monotonic()
        busy = ValueError(
            f"another process is at work on this search ({layout.lock(target)}). To follow it: python -m sweeps "
            f"watch {sweep_id}. For a second search beside it pass another seed, hydra.sweeper.sampler.seed=1."
        )
        with held_lock(layout.lock(target), PATIENCE_S, busy) as held:
            info = {
                **planned.about,
                "created": time.time(),
                "swept": {axis.key: [axis.typed] for axis in space.axes},
                "metrics": list(goal.metrics),
            }
            study = open_study(layout.search_study(target), goal)
            search = Search(ledger, sweep_id, info, study, space, goal, self._plan_point)
            shipper = shipper_of(ledger, sweep_id, as_dict(self.base.tracker, resolve=True))
            runs: SlurmRuns | LocalRuns
            if on_slurm:
                runs = SlurmRuns(ledger, sweep_id, shipper)
            else:
                runs = LocalRuns(ledger, sweep_id, self.base, at_once, shipper)
            with runs:
                if isinstance(runs, LocalRuns):
                    runs.dispatcher.sign(held)  # `python -m sweeps cancel` stops this process; on SLURM it cancels jobs
                search.run(runs, at_once)
            best = report(search)
        outcome = Searched(complete=search.counts["complete"], done=search.done, seconds=time.monotonic() - began)
        outcome.interrupted = runs.stopping and not search.done
        search.record_runs(outcome)
        self.session.launches.append(Launch(planned, outcome, on_slurm=on_slurm, dry_run=False))
        return best


def _as_list(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value or ()]


def _short(override: str) -> str:
    """The override with a number rounded to four digits."""
    key, _, value = override.partition("=")
    try:
        number = float(value)
    except ValueError:
        return override
    return f"{key}={value if value.lstrip('-').isdigit() else format(number, '.4g')}"
