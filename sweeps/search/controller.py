"""The controller of a search: the only owner of its Optuna study. It asks, starts ordinary runs, and tells their ends.

runs/sweeps/<id>/{optuna.journal,lock}   beside the manifest: a search is a sweep whose runs become known one by one

It may be killed anywhere. A trial is in the journal before its run is on the ledger, and its run is there before it is
started; the same command takes up every trial that was not told: finished runs are told, living ones followed, the rest
started again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from optuna import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import ask_to_prune
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import EVALUATION, VALIDATION
from sweeps.planned import Planned, write_runs
from sweeps.search.space import Space
from sweeps.search.study import Goal, suggest

NO_VALUE = "no_value"
# A trial that ended so would end so again.
HOPELESS = (Cause.USER_ERROR, Cause.DIVERGED, NO_VALUE)


class Runs(Protocol):
    """Where runs are worked on (sweeps/search/runs.py)."""

    @property
    def stopping(self) -> bool: ...  # the user said so: nothing new is to be started
    @property
    def busy(self) -> bool: ...  # runs have to be waited for, also then
    def start(self, run: Planned) -> None: ...
    def turn(self) -> dict[str, str]: ...  # waits a moment; the runs that have ended, and why if no attempt says it
    def may_prune(self, run_id: str) -> bool: ...  # it is ours, and at work
    def say(self, text: str) -> None: ...


@dataclass
class Open:
    """A trial that was asked and not yet told."""

    trial: Trial
    run_id: str
    point: str  # its own overrides
    offset: int = 0  # bytes of the run's metrics that were read


class Search:
    """One study from its first trial to its last, over any number of commands."""

    def __init__(
        self,
        ledger: Ledger,
        sweep_id: str,
        info: Mapping[str, Any],
        study: Study,
        space: Space,
        goal: Goal,
        plan_point: Callable[[list[str]], Planned],
    ) -> None:
        """plan_point: the run of a trial's overrides; ValueError if they make no legal run. Hold the lock."""
        self.ledger, self.sweep_id, self.info = ledger, sweep_id, info
        self.study, self.space, self.goal, self.plan_point = study, space, goal, plan_point
        known = ledger.sweep(sweep_id).runs if layout.sweep_info(ledger.sweep_dir(sweep_id)).exists() else ()
        self.lines = {run["run_id"]: dict(run) for run in known}  # of the manifest
        self.open: dict[int, Open] = {}  # by trial
        self.started: set[str] = set()

    def run(self, runs: Runs, at_once: int) -> None:
        """Until n_trials are told, or the user stops it. ValueError: a metric that no run has."""
        self.runs = runs
        for frozen in self.trials(TrialState.RUNNING):
            self._take_up(frozen)
        while not runs.stopping or runs.busy:
            while not runs.stopping and len(self.open) < at_once and self._is_more_wanted():
                self._ask()
            if not self.open:
                break
            ended = runs.turn()
            for one in list(self.open.values()):
                self._watch(one)
            for run_id, why in ended.items():
                self.started.discard(run_id)
                for one in [one for one in self.open.values() if one.run_id == run_id]:
                    self._tell(one, why)

    @property
    def done(self) -> bool:
        """Nothing is left to ask or to tell."""
        return not self.trials(TrialState.RUNNING) and not self._is_more_wanted()

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    # --- ask

    def _is_more_wanted(self) -> bool:
        """Trials that others were retried as are not counted."""
        self._enqueue_retries()
        if self.trials(TrialState.WAITING):
            return True
        trials = self.trials()
        return len(trials) - sum("retry_of" in t.user_attrs for t in trials) < self.goal.n_trials

    def _enqueue_retries(self) -> None:
        """Failed trials that deserve another: an idempotent pass over the study."""
        taken = {t.user_attrs["retry_of"] for t in self.trials() if "retry_of" in t.user_attrs}
        for t in self.trials(TrialState.FAIL):
            tries = t.user_attrs.get("tries", 0)
            if t.number not in taken and t.user_attrs.get("cause") not in HOPELESS and tries < self.goal.retries:
                self.study.enqueue_trial(t.params, user_attrs={"retry_of": t.number, "tries": tries + 1})

    def _ask(self) -> None:
        waiting = self.trials(TrialState.WAITING)
        self.study.sampler = self.goal.sampler(waiting[0].number if waiting else len(self.trials()), 0)
        self._begin(self.study.ask())

    def _take_up(self, frozen: FrozenTrial) -> None:
        """A trial of a controller that is gone. What it had not been given yet is suggested as it would have been."""
        self.study.sampler = self.goal.sampler(frozen.number, 0)
        self._begin(Trial(self.study, frozen._trial_id))  # pyright: ignore[reportPrivateUsage] - as Optuna itself does

    def _begin(self, trial: Trial) -> None:
        overrides = suggest(self.study, trial, self.space, self.goal)
        own = [override for override in overrides if override not in self.space.fixed.values()]
        try:
            run = self.plan_point(overrides)
        except ValueError as error:  # the space is larger than what is legal
            return self._tell_failed(trial, Cause.USER_ERROR, str(error))
        judged = self._judged(run.run_id)
        trial.set_user_attr("run_id", run.run_id)
        trial.set_user_attr("overrides", overrides)
        self._record(trial.number, run, own)
        one = self.open[trial.number] = Open(trial, run.run_id, " ".join(own))
        state = self.ledger.state(run.run_id)
        if state.state is State.FINISHED or (judged and state.state in (State.PRUNED, State.DIVERGED, State.FAILED)):
            self._watch(one, prune=False)
            self._tell(one)
        elif run.run_id not in self.started:
            self.started.add(run.run_id)
            self.runs.start(run)
        return None

    def _judged(self, run_id: str) -> bool:
        """Has this study pruned the run, or found it hopeless? Then the same point again is told the same."""
        return any(
            t.user_attrs.get("run_id") == run_id and ("pruned" in t.user_attrs or t.user_attrs.get("cause") in HOPELESS)
            for t in self.trials()
        )

    def _record(self, number: int, run: Planned, own: Sequence[str]) -> None:
        """The run on the ledger and in the sweep, in this order."""
        write_runs([run], self.ledger, self.info)
        if run.run_id not in self.lines:
            self.lines[run.run_id] = {**run.line(len(self.lines), own), "trial": number}
            self.ledger.record_sweep(self.sweep_id, self.info, list(self.lines.values()))

    # --- watch

    def _watch(self, one: Open, *, prune: bool = True) -> None:
        """Report what the run has measured since, and ask it to stop where the pruner says so."""
        path = layout.journal(self.ledger.run_dir(one.run_id))
        reading = journal.read(path, offset=one.offset)
        one.offset = reading.end
        for damage in reading.damaged:
            self.runs.say(f"trial {one.trial.number}: {path}: {damage}: left out")
        for record in reading.records:
            self._check_metrics(record)
            self._report(one, record, prune=prune)
        if prune and (why := one.trial.user_attrs.get("pruned")) and self.runs.may_prune(one.run_id):
            ask_to_prune(self.ledger.run_dir(one.run_id), why)

    def _report(self, one: Open, record: journal.Record, *, prune: bool) -> None:
        """Step 0, the base policy's, is the same for all: nothing is judged by it."""
        value = record.metrics.get(self.goal.metrics[0], math.nan)
        if len(self.goal.metrics) > 1 or not record.step or math.isnan(value) or "pruned" in one.trial.user_attrs:
            return
        known = max(self.trials()[one.trial.number].intermediate_values, default=0)
        if record.step > known:
            one.trial.report(value, record.step)
        # The last step that is known may not have been judged: the controller was killed in between.
        if prune and record.step >= known and one.trial.should_prune():
            pruner = type(self.study.pruner).__name__
            why = f"{pruner} at step {record.step}: trial {one.trial.number} of search {self.sweep_id}"
            one.trial.set_user_attr("pruned", why)

    def _check_metrics(self, record: journal.Record) -> None:
        """What one training step lacks, all will lack: found in seconds, not at the end."""
        missing = [
            m for m in self.goal.metrics if not m.startswith((EVALUATION, VALIDATION)) and m not in record.metrics
        ]
        if record.step and missing:
            known = sorted(name for name in record.metrics if not name.startswith((EVALUATION, VALIDATION, "time/")))
            raise ValueError(
                f"no metric {', '.join(missing)}: a training step has {', '.join(known)}. Correct "
                "hydra.sweeper.metrics; what has been trained is kept."
            )

    # --- tell

    def _tell(self, one: Open, why: str = "") -> None:
        state = self.ledger.state(one.run_id)
        del self.open[one.trial.number]
        if state.state is State.FINISHED:
            self._tell_values(one)
        elif state.state is State.PRUNED:
            one.trial.set_user_attr("pruned", state.message)
            self.study.tell(one.trial, state=TrialState.PRUNED)
            self.runs.say(f"trial {one.trial.number}: pruned at step {state.step}   {one.point}")
        else:
            cause = state.cause or ("cancelled" if state.state is State.PLANNED else state.state.value)
            self._tell_failed(one.trial, cause, state.message or why)

    def _tell_values(self, one: Open) -> None:
        """The values at the last step. None, or NaN, is a failed trial: a broken verifier measures nothing."""
        records = journal.read(layout.journal(self.ledger.run_dir(one.run_id))).records
        last = max(records, key=lambda record: record.step).metrics if records else {}
        values = [last.get(metric, math.nan) for metric in self.goal.metrics]
        if any(map(math.isnan, values)):
            lacking = [m for m, value in zip(self.goal.metrics, values, strict=True) if math.isnan(value)]
            return self._tell_failed(one.trial, NO_VALUE, f"{', '.join(lacking)} has no value at the last step")
        self.study.tell(one.trial, values)
        shown = " ".join(f"{value:.6g}" for value in values)
        self.runs.say(f"trial {one.trial.number}: {shown}   {one.point}{self._best()}")
        return None

    def _best(self) -> str:
        if len(self.goal.metrics) > 1:
            return ""
        return f"   (best: {self.study.best_value:.6g}, trial {self.study.best_trial.number})"

    def _tell_failed(self, trial: Trial, cause: str, message: str) -> None:
        trial.set_user_attr("cause", str(cause))
        trial.set_user_attr("message", message)
        self.study.tell(trial, state=TrialState.FAIL)
        self.runs.say(f"trial {trial.number}: failed: {cause}{': ' + message if message else ''}")

    @property
    def counts(self) -> Counter[str]:
        """Trials by state, in small letters."""
        return Counter(t.state.name.lower() for t in self.trials())
