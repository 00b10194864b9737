"""From journals to MLflow: what to send, and what has been sent.

A pass (`Shipper.ship`) may be repeated, killed or run twice at once; MLflow ends up with every line once:

- a batch carries the time stamps of its lines, and MLflow's metric table has (run, name, time, step, value) as its
  key: sending a batch again adds no row;
- runs/<run_id>/mlflow.json, the cursor, names the steps that have arrived, by the attempt that measured them. It is
  replaced after a batch has arrived, never before. It holds no place in the journal: lines of that may be deleted;
- an MLflow run is found again by its tags rlvr.run_id and rlvr.created if the cursor is lost, by the cursor of its
  sweep if run.json is lost too, and by its rows if all of them are; what has arrived is then read from MLflow;
- a step that MLflow has is not sent again, though another attempt took it again because its line was lost;
- a lock lets one pass at a time work on a home.

`python -m sweeps sync --verify` compares journals and MLflow row by row (rlvr/tracker/verification.py).

Not-finite values are not sent: MLflow returns +inf as 1.797e308, a lie in every average. The tag rlvr.non_finite counts
them by name; the journal keeps them. A line that is damaged on disk is left out; the report of the pass and the tag
rlvr.damaged_lines name it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import journal, layout, tags
from rlvr.ledger.cause import State
from rlvr.ledger.files import sync
from rlvr.ledger.runs import RunInfo, Unreadable, grouped, read_config, read_info
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import redact
from rlvr.tracker import presentation, store, verification
from rlvr.tracker.cursor import Cursor, signature
from rlvr.tracker.store import NoFiles, Refused, StoreDown
from rlvr.tracker.verification import Difference, Row, rows_of

if TYPE_CHECKING:
    from rlvr.tracker.client import Client

METRICS_PER_BATCH = 1000
LOCK_S = 60.0  # how long a pass waits for another one on the same home
EXPERIMENT = "rlvr"  # of runs that belong to no study
# For mlflow. No retries: a request that it repeats after a lost answer could make a run twice, and a pass that fails is
# repeated by us, after looking up what exists.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass(frozen=True)
class Run:
    """A run as the ledger describes it when a pass begins."""

    directory: Path
    info: RunInfo
    state: RunState

    @property
    def name(self) -> str:
        return self.info.name


@dataclass
class Report:
    """What one pass did. `left` and `problems` are keyed by run name; a run may be left with 0 lines (its status).

    A problem need not leave anything: what is damaged, or of another version, would not arrive later either.
    """

    uri: str  # without secrets
    shipped: dict[str, int] = field(default_factory=dict[str, int])  # lines
    left: dict[str, int] = field(default_factory=dict[str, int])  # lines
    problems: dict[str, str] = field(default_factory=dict[str, str])
    error: str | None = None  # why the pass stopped
    warning: str | None = None
    running: int = 0  # runs that may still write

    @property
    def complete(self) -> bool:
        return not self.left and self.error is None

    def note_problems(self, sweep: Sweep) -> None:
        """What of a sweep cannot be read."""
        if sweep.problems:
            self.problems[sweep.sweep_id] = " ".join(sweep.problems)

    def __str__(self) -> str:
        lines, num_runs = sum(self.shipped.values()), sum(1 for n in self.shipped.values() if n)
        text = f"MLflow: shipped {lines} lines of {num_runs} runs to {self.uri}"
        if self.left:
            names = [f"{name} ({count})" for name, count in self.left.items()]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            text += f"; left {sum(self.left.values())} lines of {len(names)} runs: {', '.join(names[:8])}{more}"
        reasons = [self.error] if self.error else list(dict.fromkeys(self.problems.values()))
        return "; ".join([text, *reasons[:3]])


class Shipper:
    """Ships the runs of one home to one store. Constructing it imports and contacts nothing."""

    def __init__(self, home: Path, tracking_uri: str | None = None) -> None:
        self.home = home.resolve()
        self.ledger = Ledger(self.home)
        self.uri = store.resolve(self.home, tracking_uri)
        self._client: Client | None = None
        self._database: tuple[int, int] | None = None  # which SQLite file the client has open: it may be deleted
        self._databases = 0  # how many it has had
        # Of runs whose journal was read and has arrived: who reads it, and which steps the cursor named then.
        self._followers: dict[Path, tuple[journal.Follower, dict[str, list[list[int]]]]] = {}
        self._measured: dict[str, set[str]] = {}  # names of the metrics that were sent, by experiment
        self._columns: dict[str, list[str]] = {}  # of the knobs of a sweep
        self._closed: set[str] = set()  # MLflow runs whose run is gone, and which say so

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
            report.error = self._clean(error) + store.cure(self.uri, str(error))
        for run in present:
            if run.directory not in done:
                report.left[run.name] = report.left.get(run.name, 0) + self._lines_left(run)
        return report

    def verify(self, run_dirs: Iterable[Path], *, repair: bool = False) -> tuple[dict[str, str], int]:
        """({run name: how its MLflow run differs from its journal, or why nobody can say}, rows that are equal). Ship
        before.

        repair: let the next pass make them equal. It sends what MLflow lacks; an MLflow run with rows that the journal
        has not is deleted, and made anew. Raises StoreDown.
        """
        report = Report(redact(self.uri))
        unequal: dict[str, str] = {}
        num_equal = 0
        with self._alone():
            client = self._connect()
        for run in self._readable(dict.fromkeys(run_dirs), report):
            with self._alone():  # a pass would send rows, and move the cursor, amid the comparison
                fault, equal = self._compare(client, run, repair=repair)
            num_equal += equal
            if fault:
                unequal[run.name] = fault
        not_compared = {"not compared": " ".join(report.problems)} if report.problems else {}
        return unequal | not_compared, num_equal

    def _compare(self, client: Client, run: Run, *, repair: bool) -> tuple[str, int]:
        """(how its MLflow run differs from its journal, "" if it does not; rows that are equal)."""
        cursor = Cursor.load(run.directory, self.uri)
        try:
            if not _is_valid(client, cursor):
                return "it is not in MLflow", 0
        except Refused as error:  # its experiment is deleted: restored, it has all that the cursor names
            return self._clean(error), 0
        try:
            stored = client.rows(cursor.mlflow_run_id)  # before the journal, which may grow meanwhile
        except Refused as error:
            if repair:
                Cursor().save(run.directory, self.uri)
            return self._clean(error), 0
        records = journal.Follower(layout.journal(run.directory)).all()
        found = verification.difference(records, stored, cursor.arrived)
        if found and repair:
            self._let_repair(client, run, cursor, found)
        return str(found), len(stored - found.foreign)

    def _let_repair(self, client: Client, run: Run, cursor: Cursor, found: Difference) -> None:
        if found.foreign:
            client.trash(cursor.mlflow_run_id)
            cursor = Cursor()
        cursor.take_back({row.step for row in found.lacking})
        cursor.save(run.directory, self.uri)

    def _readable(self, directories: Iterable[Path], report: Report) -> list[Run]:
        """The runs, how each stands first: what it measures after that is for the next pass."""
        present: list[Run] = []
        errors: list[Unreadable] = []
        for directory in directories:
            state = self.ledger.state(directory.name)
            try:
                present.append(Run(directory, read_info(directory), state))
            except Unreadable as error:
                errors.append(error)
        for line in grouped(errors):
            report.problems[line] = line
        return present

    def _pass(self, present: Sequence[Run], run_ids: Sequence[str], report: Report, done: set[Path]) -> None:
        """run_ids: also of runs that are gone."""
        with self._alone():
            client = self._connect()
            by_id = {run.info.run_id: run for run in present}
            sweeps = [s for s in self._sweeps() if not set(run_ids).isdisjoint(s.run_ids)]
            for run in present:
                try:
                    self._ship_run(client, run, [s for s in sweeps if run.info.run_id in s.run_ids], report)
                    done.add(run.directory)
                except (Refused, OSError, ValueError) as error:
                    report.problems[run.name] = f"{run.name}: {self._clean(error)}"
            for sweep in sweeps:
                report.note_problems(sweep)
                try:
                    self._close_sweep(client, sweep, by_id)
                except NoFiles as error:
                    report.problems[sweep.sweep_id] = f"sweep {sweep.sweep_id}: {self._clean(error)}"
                except Refused as error:
                    report.problems[sweep.sweep_id] = f"sweep {sweep.sweep_id}: {self._clean(error)}"
                    report.left[f"sweep {sweep.sweep_id}"] = 0

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One pass at a time works on a home. Raises StoreDown if another holds it for long."""
        from filelock import FileLock, Timeout

        held = FileLock(layout.mlflow_lock(self.home))
        try:
            held.acquire(timeout=LOCK_S)
        except Timeout:
            raise StoreDown(f"another pass has held {held.lock_file} for {LOCK_S:.0f} s") from None
        try:
            yield
        finally:
            held.release()

    def _sweeps(self) -> list[Sweep]:
        """Oldest first."""
        return sorted(self.ledger.sweeps(), key=lambda sweep: (sweep.created, sweep.sweep_id))

    def _connect(self) -> Client:
        """A client of a store that answers and has its tables. Call under the lock: tables are made exactly once."""
        if (fault := store.fault(self.uri)) is not None:
            raise StoreDown(fault)
        if self._client is None or store.identity_of(self.uri) != self._database:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            from rlvr.tracker.client import Client  # imports mlflow: two to three seconds

            artifacts = layout.mlflow_artifacts(self.home).as_uri() if store.is_local(self.uri) else None
            self._client = Client(store.respelled(self.uri, self._databases), artifacts)
            self._database, self._databases = store.identity_of(self.uri), self._databases + 1
        self._client.identities.clear()  # asked once a pass: the database may have been replaced
        return self._client

    def _ship_run(self, client: Client, run: Run, sweeps: Sequence[Sweep], report: Report) -> None:
        cursor = self._adopt(client, run, sweeps)
        report.shipped.setdefault(run.name, 0)
        self._send_news(client, run, cursor, report)
        if cursor.damaged:
            report.problems[run.name] = f"{run.name}: {', '.join(cursor.damaged)}: left out"
        current = tags.tags(run.info, run.state, sweeps)
        if cursor.non_finite:
            current["rlvr.non_finite"] = json.dumps(cursor.non_finite)[: tags.MAX_VALUE]
        if cursor.damaged or "rlvr.damaged_lines" in cursor.tags:  # they may have been deleted since
            current["rlvr.damaged_lines"] = ", ".join(cursor.damaged)[: tags.MAX_VALUE]
        status = tags.status(run.state.state)
        self._update(client, run.directory, cursor, current, status, run.state.end_time or 0.0)

    def _send_news(self, client: Client, run: Run, cursor: Cursor, report: Report) -> None:
        """Send the lines of steps that have not arrived. Of a step that two attempts raced for, the first."""
        path = layout.journal(run.directory)
        now = signature(path)
        if now in ([0, 0], cursor.journal):
            return
        # A line must not be in MLflow and then vanish from the journal with the page cache of a machine that dies: the
        # resumed attempt would measure its step again, at another time, and MLflow would show both.
        sync(path)
        # Taken out until all has arrived: a pass that fails half-way reads from the start again.
        follower, left_at = self._followers.pop(run.directory, (journal.Follower(path), {}))
        follower = follower if left_at == cursor.steps else journal.Follower(path)
        torn = follower.read()
        cursor.damaged = [str(each) for each in follower.damaged]
        if torn and run.state.state is State.FINISHED:  # nobody will make it whole
            report.problems[run.name] = f"{run.name}: the last line of {path} is torn: left out"
        arrived = cursor.arrived
        for batch in _batches([record for record in follower.news if record.step not in arrived]):
            client.send_metrics(cursor.mlflow_run_id, batch)
            self._measured.setdefault(cursor.experiment_id, set()).update(k for r in batch for k in r.metrics)
            counts = Counter(k for r in batch for k, v in r.metrics.items() if not math.isfinite(v))
            cursor.non_finite = dict(Counter(cursor.non_finite) + counts)
            cursor.add(batch)
            cursor.save(run.directory, self.uri)
            report.shipped[run.name] += len(batch)
        cursor.journal = [] if torn else now
        cursor.save(run.directory, self.uri)
        self._followers[run.directory] = follower, cursor.steps

    def _adopt(self, client: Client, run: Run, sweeps: Sequence[Sweep]) -> Cursor:
        """The cursor of a run; if it is lost or of another database, one of the MLflow run that is found or made."""
        cursor = Cursor.load(run.directory, self.uri)
        if _is_valid(client, cursor):
            return cursor
        config = read_config(run.directory)
        values, cut = tags.params(config)
        first = {**tags.tags(run.info, run.state, []), **tags.choice_tags(config)}
        if cut:
            first["rlvr.params_cut"] = ",".join(cut)[: tags.MAX_VALUE]
        experiment_id = client.experiment(run.info.study or EXPERIMENT)
        cursor = Cursor(experiment_id, client.identity(experiment_id))
        parent = next((s for s in sweeps if s.study == run.info.study), None)
        above = None if parent is None else self._adopt_sweep(client, parent)
        if parent is not None and above is not None:
            first |= {"rlvr.sweep_id": parent.sweep_id, "mlflow.parentRunId": above.mlflow_run_id}
        if not self._find_again(client, run, cursor, first, above):
            cursor.mlflow_run_id = client.create(experiment_id, run.name, first, run.info.created)
        client.send_params(cursor.mlflow_run_id, values)
        cursor.save(run.directory, self.uri)
        if parent is not None and above is not None:
            above.runs[run.info.run_id] = cursor.mlflow_run_id
            above.save(self.ledger.sweep_dir(parent.sweep_id), self.uri)
        return cursor

    def _find_again(
        self, client: Client, run: Run, cursor: Cursor, first: Mapping[str, str], above: Cursor | None
    ) -> bool:
        """Let a new cursor name the MLflow run that this run has already, and what of it has arrived there.

        With another time of creation its run.json was lost, or all of it: in MLflow are then rows that no journal has.
        Such an MLflow run is deleted, that nobody takes it for one that still runs.
        """
        records = journal.Follower(layout.journal(run.directory)).all()
        key = {name: first[name] for name in ("rlvr.run_id", "rlvr.created") if name in first}
        known = client.find(cursor.experiment_id, key)
        stored = client.rows(known) if known else set[Row]()
        if known is None and above is not None and (known := above.runs.get(run.info.run_id)):
            try:
                stored = client.rows(known)
            except Refused:  # deleted
                return False
            if stored and not any(rows_of(record) & stored for record in records):
                client.trash(known)
                return False
            client.send_tags(known, key)
        for other in [] if known else client.find_all(cursor.experiment_id, {"rlvr.run_id": run.info.run_id}):
            stored = client.rows(other)
            if any(rows_of(record) & stored for record in records):  # the time stamps too: no other journal's
                known = other
                client.send_tags(known, key)
                break
        if known is None:
            return False
        cursor.mlflow_run_id = known
        cursor.add(verification.arrived(records, stored))
        return True

    def _adopt_sweep(self, client: Client, sweep: Sweep) -> Cursor:
        """The cursor of a sweep's parent run, found or made like that of a run."""
        directory = self.ledger.sweep_dir(sweep.sweep_id)
        cursor = Cursor.load(directory, self.uri)
        if not _is_valid(client, cursor):
            key = {"rlvr.sweep_id": sweep.sweep_id, "rlvr.kind": "sweep"}
            chosen, params = presentation.swept(sweep, self.ledger)
            first = {**key, "rlvr.command": redact(sweep.command)[: tags.MAX_VALUE], **chosen}
            experiment_id = client.experiment(sweep.study or EXPERIMENT)
            parent = client.find(experiment_id, key)
            if parent is None:
                parent = client.create(experiment_id, tags.name_of_sweep(sweep), first, sweep.created)
            with contextlib.suppress(Refused):  # other spellings of the same values: the first ones stay
                client.send_params(parent, params)
            cursor = Cursor(experiment_id, client.identity(experiment_id), parent)
            cursor.save(directory, self.uri)
        return cursor

    def _close_sweep(self, client: Client, sweep: Sweep, present: Mapping[str, Run]) -> None:
        """The parent run ends when the last of its runs has. present: those of this pass."""
        directory = self.ledger.sweep_dir(sweep.sweep_id)
        cursor = Cursor.load(directory, self.uri)
        if not _is_valid(client, cursor):
            return  # all its runs were shipped under an earlier sweep
        states = [present[r].state if r in present else self.ledger.state(r) for r in sweep.run_ids]
        for state in states:
            self._close_lost(client, state, cursor)
        status = tags.status_of_sweep([state.state for state in states])
        said, page, made = presentation.newest_report(self.home, sweep)
        shown = presentation.tags_of(sweep, said)
        current = {key: value for key, value in shown.items() if value or key in cursor.tags}
        ended = max((s.end_time or 0.0 for s in states), default=0.0)
        # A launch that found all of its runs finished was made after they ended, and 0 would be the time of this pass.
        self._update(client, directory, cursor, current, status, max(ended, sweep.created) if ended else 0.0)
        self._save_view(client, sweep, cursor)
        if cursor.tags.get(presentation.RUNS) != (num_runs := str(len(sweep.run_ids))):
            configs = presentation.configs(sweep, self.ledger)
            client.send_file(cursor.mlflow_run_id, presentation.CONFIGS, configs)
            self._update(client, directory, cursor, {presentation.RUNS: num_runs}, status, 0.0)
        if page is not None and cursor.tags.get(presentation.REPORT) != made:
            client.send_file(cursor.mlflow_run_id, presentation.PAGE, page.read_text(encoding="utf-8"))
            self._update(client, directory, cursor, {presentation.REPORT: made}, status, 0.0)

    def _save_view(self, client: Client, sweep: Sweep, cursor: Cursor) -> None:
        """The columns of an experiment: what the sweep varies, and the metrics that matter."""
        if sweep.sweep_id not in self._columns:
            self._columns[sweep.sweep_id] = presentation.knob_columns(*presentation.swept(sweep, self.ledger))
        if cursor.experiment_id not in self._measured:
            self._measured[cursor.experiment_id] = presentation.measured(sweep, self.ledger)
        metrics = presentation.metric_columns(self._measured[cursor.experiment_id])
        client.save_view(cursor.experiment_id, [*self._columns[sweep.sweep_id], *metrics])

    def _close_lost(self, client: Client, state: RunState, above: Cursor) -> None:
        """A run that is gone, or cannot be read, has failed in MLflow too. above: the cursor of its sweep."""
        directory = self.ledger.run_dir(state.run_id)
        cursor = Cursor.load(directory, self.uri)
        if state.state is State.UNREADABLE and _is_valid(client, cursor):
            self._update(client, directory, cursor, {"rlvr.state": state.state.value}, tags.status(state.state), 0.0)
        elif state.state is State.MISSING and (known := above.runs.get(state.run_id)) and known not in self._closed:
            client.send_tags(known, {"rlvr.state": state.state.value})
            client.send_status(known, tags.status(state.state), 0.0)
            self._closed.add(known)

    def _update(
        self, client: Client, directory: Path, cursor: Cursor, current: Mapping[str, str], status: str, ended: float
    ) -> None:
        """Send what differs from what was sent: tags, then the status."""
        news = {k: v for k, v in current.items() if cursor.tags.get(k) != v}
        if news:
            client.send_tags(cursor.mlflow_run_id, news)
        if cursor.status != status:
            client.send_status(cursor.mlflow_run_id, status, ended)
        if news or cursor.status != status:
            cursor.tags, cursor.status = {**cursor.tags, **news}, status
            cursor.save(directory, self.uri)

    def _lines_left(self, run: Run) -> int:
        path, cursor = layout.journal(run.directory), Cursor.load(run.directory, self.uri)
        now = signature(path)
        if now in ([0, 0], cursor.journal):
            return 0
        return max(0, path.read_bytes().count(b"\n") - len(cursor.arrived))

    def _warning(self) -> str | None:
        path = store.sqlite_path(self.uri)
        kind = store.network_filesystem(path.parent) if path is not None else None
        if kind is None:
            return None
        return (
            f"{path} is on a network filesystem ({kind}), where SQLite can lose data. Metrics are safe in runs/; for "
            f"MLflow use a server (--uri http://...) or a file on a local disk (--uri sqlite:////local/mlflow.db)."
        )

    def _clean(self, error: Exception) -> str:
        """An error as one line without secrets: messages of HTTP libraries quote the address."""
        text = redact(" ".join(str(error).split()))
        for secret in store.secrets(self.uri):
            text = text.replace(secret, "***")
        return text if len(text) < 500 else text[:500] + "…"


def _is_valid(client: Client, cursor: Cursor) -> bool:
    return bool(cursor.identity) and client.identity(cursor.experiment_id) == cursor.identity


def _batches(records: Sequence[journal.Record]) -> Iterator[list[journal.Record]]:
    """Consecutive lines with at most 1000 metrics together; a longer line is a batch of its own."""
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
