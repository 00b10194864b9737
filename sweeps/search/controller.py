"""The controller of a search, the only owner of its Optuna study: it asks the study for trials, starts an ordinary run
for each, and tells the study the results ("ask" and "tell" are Optuna's terms).

runs/sweeps/<id>/{optuna.journal,lock}   beside the manifest: a search is a sweep whose runs become known one by one

It may be killed at any point. A trial is in the journal before its run is on the ledger, and its run is there before it
is started. The same command takes up every trial whose result was not told: finished runs are told, running ones
followed, the others started again.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from optuna import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import request_prune
from rlvr.ledger.cause import Cause, State
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import EVALUATION, VALIDATION
from sweeps.planned import PlannedRun, write_runs
from sweeps.search.space import Space
from sweeps.search.study import Goal, suggest
from sweeps.verdict import LaunchOutcome

NO_VALUE = "no_value"
# A trial that ended for one of these causes would do so again.
HOPELESS = (Cause.USER_ERROR, Cause.DIVERGED, NO_VALUE)


class Runs(Protocol):
    """The execution of runs, on this machine or on SLURM (sweeps/search/runs.py)."""

    @property
    def stopping(self) -> bool: ...  # whether the user has stopped the search: nothing new is started
    @property
    def busy(self) -> bool: ...  # whether runs still have to be waited for after that
    def start(self, run: PlannedRun) -> None: ...
    def turn(self) -> dict[str, str]: ...  # wait a moment; {run that has ended: message, if the ledger may have none}
    def may_prune(self, run_id: str) -> bool: ...  # whether this search has started the run, and it has not ended
    def say(self, text: str) -> None: ...


@dataclass
class OpenTrial:
    """A trial that was asked for and whose result was not told yet."""

    trial: Trial
    run_id: str
    point: str  # its overrides that not all trials share
    offset: int = 0  # bytes of the run's journal that were read


class Search:
    """One study, from its first trial to its last, over any number of commands."""

    def __init__(
        self,
        ledger: Ledger,
        sweep_id: str,
        info: Mapping[str, Any],
        study: Study,
        space: Space,
        goal: Goal,
        plan_point: Callable[[list[str]], PlannedRun],
    ) -> None:
        """plan_point: the run of a trial's overrides; ValueError if they make no legal run. Hold the search's lock."""
        self.ledger, self.sweep_id, self.info = ledger, sweep_id, info
        self.study, self.space, self.goal, self.plan_point = study, space, goal, plan_point
        known = ledger.sweep(sweep_id).runs if layout.sweep_info(ledger.sweep_dir(sweep_id)).exists() else ()
        self.lines = {run["run_id"]: dict(run) for run in known}  # of the manifest
        self.open: dict[int, OpenTrial] = {}  # by number
        self.started: set[str] = set()
        self.skipped = [state.run_id for state in ledger.states(self.lines) if state.state is State.FINISHED]

    def run(self, runs: Runs, at_once: int) -> None:
        """Run trials until n_trials are told, or the user stops the search. ValueError for a metric that no run has."""
        self.runs = runs
        for frozen in self.trials(TrialState.RUNNING):
            self._take_up(frozen)
        while not runs.stopping or runs.busy:
            while not runs.stopping and len(self.open) < at_once and self._is_more_wanted():
                self._ask()
            if not self.open:
                break
            ended = runs.turn()
            for open_trial in list(self.open.values()):
                self._watch(open_trial)
            for run_id, message in ended.items():
                self.started.discard(run_id)
                of_run = [open_trial for open_trial in self.open.values() if open_trial.run_id == run_id]
                for open_trial in of_run:
                    self._tell(open_trial, message)

    @property
    def done(self) -> bool:
        """Whether there is no trial left to ask for or to tell."""
        return not self.trials(TrialState.RUNNING) and not self._is_more_wanted()

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    # --- ask

    def _is_more_wanted(self) -> bool:
        """Whether another trial is to be started. Retries do not count as trials of their own."""
        self._enqueue_retries()
        if self.trials(TrialState.WAITING):
            return True
        trials = self.trials()
        return len(trials) - sum("retry_of" in t.user_attrs for t in trials) < self.goal.n_trials

    def _enqueue_retries(self) -> None:
        """Queue retries of failed trials: an idempotent pass over the study."""
        retried = {t.user_attrs["retry_of"] for t in self.trials() if "retry_of" in t.user_attrs}
        for t in self.trials(TrialState.FAIL):
            tries = t.user_attrs.get("tries", 0)
            if t.number not in retried and t.user_attrs.get("cause") not in HOPELESS and tries < self.goal.retries:
                self.study.enqueue_trial(t.params, user_attrs={"retry_of": t.number, "tries": tries + 1})

    def _ask(self) -> None:
        waiting = self.trials(TrialState.WAITING)
        self.study.sampler = self.goal.sampler(waiting[0].number if waiting else len(self.trials()), 0)
        self._begin(self.study.ask())

    def _take_up(self, frozen: FrozenTrial) -> None:
        """Continue a trial of an earlier controller. Missing parameters get the values that they would have got."""
        self.study.sampler = self.goal.sampler(frozen.number, 0)
        self._begin(Trial(self.study, frozen._trial_id))  # pyright: ignore[reportPrivateUsage] - as Optuna itself does

    def _begin(self, trial: Trial) -> None:
        overrides = suggest(self.study, trial, self.space, self.goal)
        own = [override for override in overrides if override not in self.space.fixed.values()]
        try:
            run = self.plan_point(overrides)
        except ValueError as error:  # the search space also contains points that are no legal run
            self._tell_failed(trial, Cause.USER_ERROR, str(error))
            return
        judged = self._is_judged(run.run_id)
        trial.set_user_attr("run_id", run.run_id)
        trial.set_user_attr("overrides", overrides)
        is_new = run.run_id not in self.lines
        write_runs([run], self.ledger, self.info)
        if is_new:
            self.lines[run.run_id] = {**run.line(len(self.lines), run.overrides), "trial": trial.number}
            self.ledger.record_sweep(self.sweep_id, self.info, list(self.lines.values()))
        open_trial = self.open[trial.number] = OpenTrial(trial, run.run_id, " ".join(own))
        state = self.ledger.state(run.run_id).state
        if is_new and state is State.FINISHED:
            self.skipped.append(run.run_id)
        if state is State.FINISHED or (judged and state in (State.PRUNED, State.DIVERGED, State.FAILED)):
            self._watch(open_trial, prune=False)
            self._tell(open_trial)
        elif run.run_id not in self.started:
            self.started.add(run.run_id)
            self.runs.start(run)

    def _is_judged(self, run_id: str) -> bool:
        """Whether an earlier trial of this study had the same run, and was pruned or failed for good. Then this trial
        has the same result.
        """
        return any(
            t.user_attrs.get("run_id") == run_id and ("pruned" in t.user_attrs or t.user_attrs.get("cause") in HOPELESS)
            for t in self.trials()
        )

    # --- watch

    def _watch(self, open_trial: OpenTrial, *, prune: bool = True) -> None:
        """Report the run's new metrics to the study, and stop the run if the pruner decides so."""
        path = layout.journal(self.ledger.run_dir(open_trial.run_id))
        reading = journal.read(path, offset=open_trial.offset)
        open_trial.offset = reading.end
        for damage in reading.damaged:
            self.runs.say(f"trial {open_trial.trial.number}: {path}: {damage}: left out")
        for record in reading.records:
            self._check_metrics(record)
            self._report(open_trial.trial, record, prune=prune)
        why = open_trial.trial.user_attrs.get("pruned")
        if prune and why and self.runs.may_prune(open_trial.run_id):
            request_prune(self.ledger.run_dir(open_trial.run_id), why)

    def _report(self, trial: Trial, record: journal.Record, *, prune: bool) -> None:
        """Report one record to the study. Step 0, of the base policy, is left out: it is the same for all trials."""
        value = record.metrics.get(self.goal.metrics[0], math.nan)
        if len(self.goal.metrics) > 1 or not record.step or math.isnan(value) or "pruned" in trial.user_attrs:
            return
        newest_step = max(self.trials()[trial.number].intermediate_values, default=0)
        if record.step > newest_step:
            trial.report(value, record.step)
        # >=: the newest reported step was not judged yet if the controller was killed in between.
        if prune and record.step >= newest_step and trial.should_prune():
            pruner = type(self.study.pruner).__name__
            why = f"{pruner}, by the value of step {record.step}: trial {trial.number} of search {self.sweep_id}"
            trial.set_user_attr("pruned", why)

    def _check_metrics(self, record: journal.Record) -> None:
        """ValueError for a metric that a training step does not have: no other step will have it either."""
        of_steps = [metric for metric in self.goal.metrics if not metric.startswith((EVALUATION, VALIDATION))]
        missing = [metric for metric in of_steps if metric not in record.metrics]
        if record.step and missing:
            known = sorted(name for name in record.metrics if not name.startswith((EVALUATION, VALIDATION, "time/")))
            raise ValueError(
                f"no metric {', '.join(missing)}: a training step has {', '.join(known)}. Correct "
                "hydra.sweeper.metrics; what has been trained is kept."
            )

    # --- tell

    def _tell(self, open_trial: OpenTrial, message: str = "") -> None:
        """Tell the study the end of a trial. message: of the failure, for a run without a message on the ledger."""
        trial, state = open_trial.trial, self.ledger.state(open_trial.run_id)
        del self.open[trial.number]
        if state.state is State.FINISHED:
            self._tell_values(open_trial)
        elif state.state is State.PRUNED:
            trial.set_user_attr("pruned", state.message)
            self.study.tell(trial, state=TrialState.PRUNED)
            self.runs.say(f"trial {trial.number}: pruned after step {state.step}   {open_trial.point}")
        else:
            cause = state.cause or ("cancelled" if state.state is State.PLANNED else state.state.value)
            self._tell_failed(trial, cause, state.message or message)

    def _tell_values(self, open_trial: OpenTrial) -> None:
        """Tell the values at the last step. A missing or NaN value, of a broken verifier say, is a failed trial."""
        trial = open_trial.trial
        records = journal.read(layout.journal(self.ledger.run_dir(open_trial.run_id))).records
        last = max(records, key=lambda record: record.step).metrics if records else {}
        values = [last.get(metric, math.nan) for metric in self.goal.metrics]
        if missing := [m for m, value in zip(self.goal.metrics, values, strict=True) if math.isnan(value)]:
            self._tell_failed(trial, NO_VALUE, f"{', '.join(missing)} has no value at the last step")
            return
        self.study.tell(trial, values)
        text = f"trial {trial.number}: {' '.join(f'{value:.6g}' for value in values)}   {open_trial.point}"
        if len(values) == 1:
            text += f"   (best: {self.study.best_value:.6g}, trial {self.study.best_trial.number})"
        self.runs.say(text)

    def _tell_failed(self, trial: Trial, cause: str, message: str) -> None:
        trial.set_user_attr("cause", str(cause))
        trial.set_user_attr("message", message)
        self.study.tell(trial, state=TrialState.FAIL)
        self.runs.say(f"trial {trial.number}: failed: {cause}{': ' + message if message else ''}")

    def record_runs(self, outcome: LaunchOutcome) -> None:
        """Record in the outcome of this command how the runs of all trials have ended."""
        outcome.skipped += self.skipped
        for state in self.ledger.states(self.lines):
            if state.run_id not in self.skipped:
                outcome.add(state.run_id, state.state, state.message)

    @property
    def counts(self) -> Counter[str]:
        """The number of trials by state, in lower case."""
        return Counter(t.state.name.lower() for t in self.trials())
