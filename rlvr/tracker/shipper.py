"""Shipping journals to MLflow: what to send, and what has been sent.

A pass (`Shipper.ship`) may be repeated, killed or run twice at once; MLflow ends up with every line once:

- the rows of a batch have the times of their lines, and the key of MLflow's metric table is (run, name, time, step,
  value): sending a batch again adds no row;
- runs/<run_id>/mlflow.json, the cursor, counts the records that have arrived, with a checksum. It is replaced after a
  batch has arrived, never before;
- if the cursor is lost (`python -m sweeps sync --resend` deletes it), or the journal no longer begins with the records
  that have arrived, the MLflow run is deleted, and the whole journal is sent to a new one. MLflow runs of a run are
  found by the tag rlvr.run_id and one of three: the tag rlvr.created, their parent run, the start of the first attempt;
- a lock lets only one pass at a time work on a home.

Values that are not finite are not sent: MLflow returns +inf as 1.797e308, which would falsify every average. The tag
rlvr.non_finite counts them by name; the journal keeps them. A line that is damaged on disk is not sent either; the
report of the pass and the tag rlvr.damaged_lines name it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import journal, layout, tags
from rlvr.ledger.attempt import newest_attempt, read_job
from rlvr.ledger.cause import State
from rlvr.ledger.files import make_private, sync
from rlvr.ledger.lock import held_lock
from rlvr.ledger.runs import RunInfo, Unreadable, lines_by_reason, read_config, read_info
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import redact, without_secrets
from rlvr.tracker import presentation, store
from rlvr.tracker.cursor import Cursor, checksum_of, send_changes, signature
from rlvr.tracker.parent_runs import EXPERIMENT, ParentRuns
from rlvr.tracker.store import NoFiles, Refused, StoreDown

if TYPE_CHECKING:
    from rlvr.tracker.client import Client

METRICS_PER_BATCH = 1000
LOCK_S = 60.0  # how long a pass waits for another pass on the same home
# For mlflow. No retries: repeating a request whose answer was lost could create a run twice. We repeat a failed pass as
# a whole instead, and look up first what exists.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
FAILURES = 3  # after so many runs in a row on which it fails, a store that answers counts as down


@dataclass(frozen=True)
class ShippedRun:
    """A run as it is on the ledger when a pass begins."""

    directory: Path
    info: RunInfo
    state: RunState

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def begun(self) -> bool:
        """Whether there is something to show of it. What cannot be read, or was left by a lost attempt, counts."""
        return self.state.state is not State.PLANNED or layout.journal(self.directory).exists()

    @property
    def start(self) -> float:
        """Unix time of the start of its first attempt; of its launch where that is not known."""
        first = read_job(layout.attempt(self.directory, 1))
        return float(first.get("started") or self.info.created)


@dataclass
class Report:
    """The result of one pass. `left` and `problems` are keyed by run name; of a run with 0 lines left, its status is.

    A problem does not imply that something is left: what is damaged, or of another version, cannot arrive later either.
    """

    uri: str  # without secrets
    tracker: str = "MLflow"
    shipped: dict[str, int] = field(default_factory=dict[str, int])  # number of lines
    left: dict[str, int] = field(default_factory=dict[str, int])  # number of lines
    problems: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None  # why the pass stopped
    warning: str | None = None
    running: int = 0  # runs that may still write

    @property
    def complete(self) -> bool:
        return not self.left and self.error is None

    def note_problems(self, sweep: Sweep) -> None:
        """Add what cannot be read of a sweep."""
        if sweep.problems:
            self.problems[sweep.sweep_id] = " ".join(sweep.problems)

    def __str__(self) -> str:
        num_lines, num_runs = sum(self.shipped.values()), sum(1 for count in self.shipped.values() if count)
        text = f"{self.tracker}: shipped {num_lines} lines of {num_runs} runs to {self.uri}"
        if self.left:
            names = [f"{name} ({count})" for name, count in self.left.items()]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            text += f"; left {sum(self.left.values())} lines of {len(names)} runs: {', '.join(names[:8])}{more}"
        reasons = [self.error] if self.error else list(dict.fromkeys(self.problems.values()))
        return "; ".join([text, *reasons[:3]])


class Shipper:
    """Ships the runs of one home to one store. The constructor imports and contacts nothing."""

    def __init__(self, home: Path, tracking_uri: str | None = None) -> None:
        self.home = home.resolve()
        self.ledger = Ledger(self.home)
        self.uri = store.resolve(self.home, tracking_uri)
        self.key = store.key(self.home, self.uri)  # of the store, in cursors
        self.parents = ParentRuns(self.ledger, self.key)
        self._client: Client | None = None
        self._database: tuple[int, int] | None = None  # the SQLite file that the client opened
        self._num_clients = 0
        # For runs whose journal has arrived as a whole: its reader, and the checksum in the cursor at that time.
        self._followers: dict[Path, tuple[journal.Follower, int]] = {}

    def ship(self, run_dirs: Iterable[Path]) -> Report:
        """One pass over the runs. Returns within seconds if the store is down; never raises because of the store."""
        report = Report(redact(self.uri), warning=self._warning())
        directories = list(dict.fromkeys(run_dirs))
        present = self._readable(directories, report)
        report.running = sum(tags.status(run.state.state) == "RUNNING" for run in present)
        done: set[Path] = set()
        try:
            if directories:
                self._pass(present, [directory.name for directory in directories], report, done)
        except (StoreDown, OSError, ValueError) as error:
            report.error = self._clean(error) + store.remedy(self.uri, str(error))
        for run in present:
            if run.directory not in done:
                report.left[run.name] = report.left.get(run.name, 0) + self._lines_left(run)
        return report

    def _readable(self, directories: Iterable[Path], report: Report) -> list[ShippedRun]:
        """The runs that can be read. States are read before journals: what is recorded later is for the next pass."""
        present: list[ShippedRun] = []
        errors: list[Unreadable] = []
        for directory in directories:
            state = self.ledger.state(directory.name)
            try:
                present.append(ShippedRun(directory, read_info(directory), state))
            except Unreadable as error:
                errors.append(error)
        for line in lines_by_reason(errors):
            report.problems[line] = line
        return present

    def _pass(self, present: Sequence[ShippedRun], run_ids: Sequence[str], report: Report, done: set[Path]) -> None:
        """Ship the runs, and add them to `done`; update their sweeps. run_ids: also those of runs that are gone."""
        path = layout.mlflow_lock(self.home)
        with held_lock(path, LOCK_S, StoreDown(f"another pass has held {path} for {LOCK_S:.0f} s")):
            client = self._connect()
            self.parents.begin_pass()
            by_id = {run.info.run_id: run for run in present}
            members = [(sweep, frozenset(sweep.run_ids)) for sweep in self._sweeps()]
            sweeps = [sweep for sweep, of_sweep in members if not of_sweep.isdisjoint(run_ids)]
            num_failed = 0  # in a row
            for run in present:
                own_sweeps = [sweep for sweep, of_sweep in members if run.info.run_id in of_sweep]
                try:
                    self._ship_run(client, run, own_sweeps, report)
                    done.add(run.directory)
                    num_failed = 0
                except (Refused, OSError, ValueError) as error:
                    report.problems[run.name] = f"{run.name}: {self._clean(error)}"
                except StoreDown as error:  # or a store that fails on this run alone, which must not hold up the others
                    num_failed += 1
                    if num_failed in (FAILURES, len(present)) or store.fault(self.uri) is not None:
                        raise
                    report.problems[run.name] = f"{run.name}: {self._clean(error)}"
            for sweep in sweeps:
                report.note_problems(sweep)
                try:
                    states = [by_id[i].state if i in by_id else self.ledger.state(i) for i in sweep.run_ids]
                    self.parents.update(client, sweep, states)
                except (NoFiles, Refused) as error:
                    report.problems[sweep.sweep_id] = f"sweep {sweep.sweep_id}: {self._clean(error)}"
                    if isinstance(error, Refused):
                        self.parents.note_refused(sweep)
                        again = f"python -m sweeps sync --resend {sweep.sweep_id}"
                        report.problems[sweep.sweep_id] += f" (to create its MLflow runs again: {again})"

    def _sweeps(self) -> list[Sweep]:
        """All sweeps, oldest first."""
        return sorted(self.ledger.sweeps(), key=lambda sweep: (sweep.created, sweep.sweep_id))

    def _connect(self) -> Client:
        """A client of the store, whose tables exist. Call it under the lock: tables must be created once only."""
        if (fault := store.fault(self.uri)) is not None:
            raise StoreDown(fault)
        if self._client is None or store.identity_of(self.uri) != self._database:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            from rlvr.tracker.client import Client  # imports mlflow: two to three seconds

            artifacts = layout.mlflow_artifacts(self.home).as_uri() if store.is_local(self.uri) else None
            uri = store.respelled(self.uri, self._num_clients)
            self._num_clients += 1  # also if this one fails: the file may be replaced
            own = store.sqlite_path(self.uri) == layout.mlflow_database(self.home)
            if own:  # what was typed is in it, as in the files of runs/ that only their user may read
                make_private(layout.mlflow_artifacts(self.home))
            self._client = Client(uri, artifacts, private=own)
            if own:
                self._client.move_artifacts(layout.mlflow_database(self.home))
            self._database = store.identity_of(self.uri)
        self._client.identities.clear()  # to be read once per pass: the database may have been replaced
        return self._client

    def _ship_run(self, client: Client, run: ShippedRun, sweeps: Sequence[Sweep], report: Report) -> None:
        """Send what MLflow lacks of a run: lines, tags and status. sweeps: those that contain it, oldest first."""
        sweep = next((sweep for sweep in sweeps if sweep.study == run.info.study), None)
        parent = None if sweep is None else self.parents.cursor(client, sweep)
        cursor = Cursor.load(run.directory, self.key)
        report.shipped.setdefault(run.name, 0)
        if not cursor.is_of(client):
            if not run.begun:  # MLflow keeps the start of a run as it was created with: its wait would count as work
                return
            cursor = self._create(client, run, parent)
        if not self._send_lines(client, run, cursor, report):
            Cursor().save(run.directory, self.key)
            cursor = self._create(client, run, parent)
            self._send_lines(client, run, cursor, report)
        if cursor.damaged:
            report.problems[run.name] = f"{run.name}: {', '.join(cursor.damaged)}: left out"
        current = {name: "" for name in tags.WITHDRAWN if name in cursor.tags}
        current |= tags.tags(run.info, run.state, sweeps)
        if sweep is not None and parent is not None:
            self.parents.note_run(sweep, run.info.run_id, cursor.mlflow_run_id)
            current |= {"rlvr.sweep_id": sweep.sweep_id, "mlflow.parentRunId": parent.mlflow_run_id}
        if cursor.non_finite or "rlvr.non_finite" in cursor.tags:
            current["rlvr.non_finite"] = json.dumps(cursor.non_finite)[: tags.MAX_VALUE]
        if cursor.damaged or "rlvr.damaged_lines" in cursor.tags:  # these lines may have been deleted since
            current["rlvr.damaged_lines"] = ", ".join(cursor.damaged)[: tags.MAX_VALUE]
        status = tags.status(run.state.state)
        send_changes(client, run.directory, cursor, self.key, current, status, run.state.end_time or 0.0)
        if run.state.end_time is not None:
            self._send_files(client, run, cursor, status, report)

    def _send_files(self, client: Client, run: ShippedRun, cursor: Cursor, status: str, report: Report) -> None:
        """Send the files of a run that has ended, once for each attempt. A store that takes none is a problem."""
        attempt = str(newest_attempt(run.directory))
        if cursor.tags.get(presentation.FILES) == attempt:
            return
        try:
            files = presentation.files_of_run(run.directory)
            for name, text in files.items():
                client.send_file(cursor.mlflow_run_id, name, text)
        except NoFiles as error:
            report.problems[run.name] = f"{run.name}: {self._clean(error)}"
            return
        current = {presentation.FILES: attempt, **(presentation.TABLES if presentation.SAMPLES in files else {})}
        send_changes(client, run.directory, cursor, self.key, current, status, 0.0)

    def _create(self, client: Client, run: ShippedRun, parent: Cursor | None) -> Cursor:
        """Delete what MLflow has of a run and create its MLflow run, without lines. parent: of the parent run."""
        config = read_config(run.directory)
        values, cut = tags.params(config)
        first_tags = {**tags.tags(run.info, run.state, []), **tags.choice_tags(config)}
        if cut:
            first_tags["rlvr.params_cut"] = ",".join(cut)[: tags.MAX_VALUE]
        if parent is None:
            experiment_id = client.experiment(run.info.study or EXPERIMENT)
        else:
            experiment_id = parent.experiment_id  # it may have been renamed in the dashboard
            first_tags["mlflow.parentRunId"] = parent.mlflow_run_id
        # Equal runs of other homes have the same id, but another time of creation, another parent run, another start.
        of_id = {"rlvr.run_id": run.info.run_id}
        found = set(client.find_all(experiment_id, of_id, run.start))
        for name in {"rlvr.created", "mlflow.parentRunId"} & first_tags.keys():
            found.update(client.find_all(experiment_id, {**of_id, name: first_tags[name]}))
        for mlflow_run_id in found:
            client.delete_run(mlflow_run_id)
        mlflow_run_id = client.create(experiment_id, run.name, first_tags, run.start)
        client.send_params(mlflow_run_id, values)
        cursor = Cursor(experiment_id, client.identity(experiment_id), mlflow_run_id)
        cursor.save(run.directory, self.key)
        return cursor

    def _send_lines(self, client: Client, run: ShippedRun, cursor: Cursor, report: Report) -> bool:
        """Send the records that have not arrived. Returns False, and sends nothing, if MLflow has other records.

        A journal with fewer records than MLflow is left alone: it may be an old view of a file server.
        """
        path = layout.journal(run.directory)
        now = signature(path)
        if now in ([0, 0], cursor.journal):
            return True
        # If the machine crashed after a line is in MLflow and before it is on disk, the resumed attempt would record
        # the step again, with another time.
        sync(path)
        # Removed until all has arrived: after a pass that fails half-way, the next one reads from the start again.
        follower, checksum = self._followers.pop(run.directory, (journal.Follower(path), 0))
        if (follower.count, checksum) != (cursor.sent, cursor.checksum):
            follower = journal.Follower(path)
        torn = follower.read()
        num_unseen = cursor.sent - (follower.count - len(follower.news))  # of the news, which MLflow has already
        if num_unseen and follower.count >= cursor.sent and checksum_of(follower.news[:num_unseen]) != cursor.checksum:
            return False
        cursor.damaged = list(follower.damaged)
        cursor.non_finite = dict(follower.non_finite)
        if torn and run.state.state is State.FINISHED:  # no attempt will complete it
            report.problems[run.name] = f"{run.name}: the last line of {path} is torn: left out"
        for batch in _batches(follower.news[num_unseen:]):
            client.send_metrics(cursor.mlflow_run_id, batch)
            self.parents.measured.setdefault(cursor.experiment_id, set()).update(*(record.metrics for record in batch))
            cursor.add(batch)
            cursor.save(run.directory, self.key)
            report.shipped[run.name] += len(batch)
        may_grow = torn and tags.status(run.state.state) == "RUNNING"
        cursor.journal = [] if may_grow else now
        cursor.save(run.directory, self.key)
        self._followers[run.directory] = follower, cursor.checksum
        return True

    def _lines_left(self, run: ShippedRun) -> int:
        """Number of lines of a journal that are not in MLflow."""
        path, cursor = layout.journal(run.directory), Cursor.load(run.directory, self.key)
        now = signature(path)
        if now in ([0, 0], cursor.journal):
            return 0
        return max(0, path.read_bytes().count(b"\n") - cursor.sent)

    def _warning(self) -> str | None:
        """The warning about a SQLite file on a network filesystem, if it is on one."""
        path = store.sqlite_path(self.uri)
        kind = store.network_filesystem(path.parent) if path is not None else None
        if kind is None:
            return None
        return (
            f"{path} is on a network filesystem ({kind}), where SQLite can lose data. Metrics are safe in runs/; for "
            f"MLflow use a server (--uri http://...) or a file on a local disk (--uri sqlite:////local/mlflow.db)."
        )

    def _clean(self, error: Exception) -> str:
        """An error in one line without secrets: messages of HTTP libraries contain the address."""
        text = without_secrets(" ".join(str(error).split()), self.uri)
        return text if len(text) < 500 else text[:500] + "…"


def _batches(records: Sequence[journal.Record]) -> Iterator[list[journal.Record]]:
    """Divide records into batches with at most METRICS_PER_BATCH metrics; a record with more is a batch of its own."""
    batch: list[journal.Record] = []
    size = 0
    for record in records:
        if batch and size + len(record.metrics) > METRICS_PER_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.metrics)
    if batch:
        yield batch
