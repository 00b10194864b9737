"""Parent runs: for each sweep one MLflow run, above those of its runs, with its command, its report and its columns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr.ledger import layout, tags
from rlvr.ledger.cause import State
from rlvr.ledger.journal import Record
from rlvr.ledger.runs import Unreadable, read_private
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import redact
from rlvr.tracker import presentation
from rlvr.tracker.cursor import Cursor, send_changes
from rlvr.tracker.store import Refused

if TYPE_CHECKING:
    from rlvr.tracker.client import Client

EXPERIMENT = "rlvr"  # the experiment of runs without a study


class ParentRuns:
    """The parent runs of a home's sweeps in one store. Used under the home's lock."""

    def __init__(self, ledger: Ledger, key: str) -> None:
        self.ledger, self.key = ledger, key  # the key of the store in cursors
        self._cursors: dict[str, Cursor] = {}  # {sweep id: cursor}, in this pass
        self.measured: dict[str, set[str]] = {}  # {experiment id: names of the metrics that were sent}
        self._columns: dict[str, list[str]] = {}  # {sweep id: columns of its knobs}
        self._closed: set[str] = set()  # MLflow runs that were marked as missing, as their run is gone

    def begin_pass(self) -> None:
        """Forget the cursors of the last pass: another process may have changed them since."""
        self._cursors.clear()

    def cursor(self, client: Client, sweep: Sweep) -> Cursor:
        """The cursor of a parent run, which is found or created if need be."""
        cursor = self._cursors.get(sweep.sweep_id)
        if cursor is None:
            directory = self.ledger.sweep_dir(sweep.sweep_id)
            cursor = Cursor.load(directory, self.key)
            if not cursor.is_of(client):
                experiment_id = client.experiment(sweep.study or EXPERIMENT)
                mlflow_run_id = self._found_or_created(client, sweep, experiment_id)
                cursor = Cursor(experiment_id, client.identity(experiment_id), mlflow_run_id)
                cursor.save(directory, self.key)
            self._cursors[sweep.sweep_id] = cursor
        return cursor

    def note_run(self, sweep: Sweep, run_id: str, mlflow_run_id: str) -> None:
        """Record in the cursor of a parent run which MLflow run a run of its sweep is."""
        cursor = self._cursors[sweep.sweep_id]
        if cursor.runs.get(run_id) != mlflow_run_id:
            cursor.runs[run_id] = mlflow_run_id
            cursor.save(self.ledger.sweep_dir(sweep.sweep_id), self.key)

    def update(self, client: Client, sweep: Sweep, states: Sequence[RunState]) -> None:
        """Update the parent run of a sweep, which ends with the last run. states: of all its runs."""
        directory = self.ledger.sweep_dir(sweep.sweep_id)
        cursor = Cursor.load(directory, self.key)
        if not cursor.is_of(client):
            return  # all its runs were shipped as part of an earlier sweep
        for state in states:
            self._close_missing(client, state, cursor)
        status = tags.status_of_sweep([state.state for state in states])
        report = presentation.newest_report(self.ledger.home, sweep)
        sweep_tags = presentation.tags_of(sweep, report.summary)
        current = {name: value for name, value in sweep_tags.items() if value or name in cursor.tags}
        ended = max((state.end_time or 0.0 for state in states), default=0.0)
        # If all runs of a launch were finished already, it was created after they ended. 0: the time of this pass.
        send_changes(client, directory, cursor, self.key, current, status, max(ended, sweep.created) if ended else 0.0)
        self._save_view(client, sweep, cursor)
        num_runs = str(len(sweep.run_ids))
        if cursor.tags.get(presentation.RUNS) != num_runs:
            configs = presentation.configs(sweep, self.ledger)
            client.send_file(cursor.mlflow_run_id, presentation.CONFIGS, configs)
            send_changes(client, directory, cursor, self.key, {presentation.RUNS: num_runs}, status, 0.0)
        if report.page is not None and cursor.tags.get(presentation.REPORT) != report.time:
            client.send_file(cursor.mlflow_run_id, presentation.PAGE, report.page.read_text(encoding="utf-8"))
            figures = report.page.parent / presentation.FIGURES
            if figures.is_dir():
                client.send_folder(cursor.mlflow_run_id, presentation.FIGURES, figures)
            for run_id, colour in report.summary.get("colours", {}).items():
                if run_id in cursor.runs:
                    client.send_tags(cursor.runs[run_id], {presentation.COLOUR: colour})
            scores = report.summary.get("scores", {})
            client.send_metrics(cursor.mlflow_run_id, [Record(0, report.page.stat().st_mtime, 0, scores)])
            send_changes(client, directory, cursor, self.key, {presentation.REPORT: report.time}, status, 0.0)

    def note_refused(self, sweep: Sweep) -> None:
        """Record that MLflow refuses the parent run of a sweep (it was deleted there, say): no command waits for it."""
        directory = self.ledger.sweep_dir(sweep.sweep_id)
        cursor = Cursor.load(directory, self.key)
        cursor.status = presentation.REFUSED
        cursor.save(directory, self.key)

    def _found_or_created(self, client: Client, sweep: Sweep, experiment_id: str) -> str:
        """The parent run of a sweep. It is found if a shipper was killed before it could save the cursor."""
        # Equal sweeps of other homes have the same id, but other times of creation.
        key = {"rlvr.sweep_id": sweep.sweep_id, "rlvr.kind": "sweep", "rlvr.created": tags.as_text(sweep.created)}
        swept_tags, swept_params = presentation.swept_values(sweep, self.ledger)
        command = {"rlvr.command": redact(sweep.command)[: tags.MAX_VALUE]}
        known = client.find_all(experiment_id, key)
        mlflow_run_id = (
            known[0]
            if known
            else client.create(
                experiment_id, tags.name_of_sweep(sweep), {**key, **command, **swept_tags}, sweep.created
            )
        )
        with contextlib.suppress(Refused):  # other spellings of the same values: the first ones stay
            client.send_params(mlflow_run_id, swept_params)
        return mlflow_run_id

    def _save_view(self, client: Client, sweep: Sweep, cursor: Cursor) -> None:
        """Save the columns of an experiment: what the sweep varies, and the most important metrics."""
        if sweep.sweep_id not in self._columns:
            self._columns[sweep.sweep_id] = presentation.knob_columns(*presentation.swept_values(sweep, self.ledger))
        if cursor.experiment_id not in self.measured:
            self.measured[cursor.experiment_id] = presentation.measured_metrics(sweep, self.ledger)
        metrics = presentation.metric_columns(self.measured[cursor.experiment_id])
        client.save_view(cursor.experiment_id, [*self._columns[sweep.sweep_id], *metrics])

    def _close_missing(self, client: Client, state: RunState, parent: Cursor) -> None:
        """Mark a run that is gone, or cannot be read, as failed in MLflow, too. parent: the cursor of its sweep."""
        directory = self.ledger.run_dir(state.run_id)
        try:
            read_private(layout.info(directory), state.run_id)
        except Unreadable:  # nothing is wrong with it: its user ships it
            return
        cursor = Cursor.load(directory, self.key)
        if state.state is State.UNREADABLE and cursor.is_of(client):
            send_changes(
                client, directory, cursor, self.key, {"rlvr.state": state.state.value}, tags.status(state.state), 0.0
            )
        elif state.state is State.MISSING and (known := parent.runs.get(state.run_id)) and known not in self._closed:
            client.send_tags(known, {"rlvr.state": state.state.value})
            client.send_status(known, tags.status(state.state), 0.0)
            self._closed.add(known)
