"""From journals to MLflow: what to send, and what has been sent.

A pass (`Shipper.ship`) may be repeated, killed or run twice at once; MLflow ends up with every line once:

- a batch carries the time stamps of its lines, and MLflow's metric table has (run, name, time, step, value) as its
  key: sending a batch again adds no row;
- runs/<run_id>/mlflow.json, the cursor, is replaced after a batch has arrived, never before;
- an MLflow run is found again by its tags rlvr.run_id and rlvr.created if the cursor is lost;
- a lock lets one pass at a time work on a home.

Not-finite values are not sent: MLflow returns +inf as 1.797e308, a lie in every average. The tag rlvr.non_finite counts
them by name; the journal keeps them. A line that is damaged on disk is left out; the report of the pass and the tag
rlvr.damaged_lines name it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import journal, layout, tags
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, sync, write_json
from rlvr.ledger.runs import RunInfo, Unreadable, grouped, read_config, read_info
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.ledger.tags import redact
from rlvr.tracker import store
from rlvr.tracker.store import Refused, StoreDown

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


@dataclass
class Cursor:
    """How much of a run is in one MLflow store. A file holds one per tracking URI."""

    experiment_id: str = ""
    identity: str = ""  # of the experiment: an id alone means nothing in a database that was made anew
    mlflow_run_id: str = ""
    offset: int = 0  # bytes of the journal that have arrived
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    non_finite: dict[str, int] = field(default_factory=dict[str, int])
    damaged: list[str] = field(default_factory=list[str])  # lines of the journal that cannot arrive, and why

    @classmethod
    def load(cls, directory: Path, uri: str) -> Cursor:
        """An empty one if there is none: the run is then looked up in MLflow."""
        content = (read_json(layout.cursor(directory)) or {}).get(redact(uri))
        known = {f.name for f in fields(cls)}
        return cls(**content) if isinstance(content, dict) and set(content) == known else cls()

    def save(self, directory: Path, uri: str) -> None:
        path = layout.cursor(directory)
        write_json(path, {**(read_json(path) or {}), redact(uri): asdict(self)})


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

    def name(self, sweep: Sweep) -> None:
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
        self._shipped: dict[Path, tuple[int, set[int]]] = {}  # run → (offset, steps before it)

    def ship(self, run_dirs: Iterable[Path]) -> Report:
        """One pass over the runs. Returns within seconds if the store is down; never raises because of the store."""
        report = Report(redact(self.uri), warning=self._warning())
        present = self._readable(dict.fromkeys(run_dirs), report)
        report.running = sum(tags.status(run.state.state) == "RUNNING" for run in present)
        done: set[Path] = set()
        try:
            if present:
                self._pass(present, report, done)
        except (StoreDown, OSError, ValueError) as error:
            report.error = self._clean(error)
        for run in present:
            if run.directory not in done:
                report.left[run.name] = report.left.get(run.name, 0) + self._lines_left(run)
        return report

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

    def _pass(self, present: Sequence[Run], report: Report, done: set[Path]) -> None:
        from filelock import FileLock, Timeout

        lock = layout.mlflow_lock(self.home)
        try:
            with FileLock(lock, timeout=LOCK_S):
                client = self._connect()
                by_id = {run.info.run_id: run for run in present}
                sweeps = [s for s in self._sweeps() if not by_id.keys().isdisjoint(s.run_ids)]
                for run in present:
                    try:
                        self._ship_run(client, run, [s for s in sweeps if run.info.run_id in s.run_ids], report)
                        done.add(run.directory)
                    except (Refused, OSError, ValueError) as error:
                        report.problems[run.name] = f"{run.name}: {self._clean(error)}"
                for sweep in sweeps:
                    report.name(sweep)
                    try:
                        self._close_sweep(client, sweep, by_id)
                    except Refused as error:
                        report.problems[sweep.sweep_id] = f"sweep {sweep.sweep_id}: {self._clean(error)}"
                        report.left[f"sweep {sweep.sweep_id}"] = 0
        except Timeout:
            raise StoreDown(f"another pass has held {lock} for {LOCK_S:.0f} s") from None

    def _sweeps(self) -> list[Sweep]:
        """Oldest first."""
        return sorted(self.ledger.sweeps(), key=lambda sweep: (sweep.created, sweep.sweep_id))

    def _connect(self) -> Client:
        """A client of a store that answers and has its tables. Call under the lock: tables are made exactly once."""
        if (fault := store.fault(self.uri)) is not None:
            raise StoreDown(fault)
        if self._client is None:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            from rlvr.tracker.client import Client  # imports mlflow: two to three seconds

            artifacts = layout.mlflow_artifacts(self.home).as_uri() if store.is_local(self.uri) else None
            self._client = Client(self.uri, artifacts)
        self._client.identities.clear()  # asked once a pass: the database may have been replaced
        return self._client

    def _ship_run(self, client: Client, run: Run, sweeps: Sequence[Sweep], report: Report) -> None:
        cursor = self._adopt(client, run, sweeps)
        report.shipped.setdefault(run.name, 0)
        records, end = self._news(run, cursor, report)
        _, steps = self._shipped.get(run.directory, (0, set[int]()))
        for batch in _batches(records):
            client.send_metrics(cursor.mlflow_run_id, batch)
            counts = Counter(k for r in batch for k, v in r.metrics.items() if not math.isfinite(v))
            cursor.non_finite = dict(Counter(cursor.non_finite) + counts)
            cursor.offset = batch[-1].end
            cursor.save(run.directory, self.uri)
            steps.update(r.step for r in batch)
            self._shipped[run.directory] = (cursor.offset, steps)
            report.shipped[run.name] += len(batch)
        if end != cursor.offset:  # past lines that are no news
            cursor.offset = end
            cursor.save(run.directory, self.uri)
            self._shipped[run.directory] = (end, steps)
        if cursor.damaged:
            report.problems[run.name] = f"{run.name}: {', '.join(cursor.damaged)}: left out"
        current = tags.tags(run.info, run.state, sweeps)
        if cursor.non_finite:
            current["rlvr.non_finite"] = json.dumps(cursor.non_finite)[: tags.MAX_VALUE]
        if cursor.damaged:
            current["rlvr.damaged_lines"] = ", ".join(cursor.damaged)[: tags.MAX_VALUE]
        status = tags.status(run.state.state)
        self._update(client, run.directory, cursor, current, status, run.state.end_time or 0.0)

    def _news(self, run: Run, cursor: Cursor, report: Report) -> tuple[list[journal.Record], int]:
        """(lines that have not arrived, end of the last line). Of a step that two attempts raced for, the first."""
        path = layout.journal(run.directory)
        if not path.exists() or path.stat().st_size == cursor.offset:
            return [], cursor.offset
        # A line must not be in MLflow and then vanish from the journal with the page cache of a machine that dies: the
        # resumed attempt would measure its step again, at another time, and MLflow would show both.
        sync(path)
        offset, steps = self._shipped.get(run.directory, (0, set[int]()))
        if offset != cursor.offset:
            offset, steps = 0, set[int]()
        reading = journal.read(path, offset=offset)
        fresh = [str(each) for each in reading.damaged if each.end > cursor.offset]
        cursor.damaged = list(dict.fromkeys([*cursor.damaged, *fresh]))
        if reading.torn and run.state.state is State.FINISHED:  # nobody will make it whole
            report.problems[run.name] = f"{run.name}: the last line of {path} is torn: left out"
        steps = steps | {r.step for r in reading.records if r.end <= cursor.offset}
        self._shipped[run.directory] = (cursor.offset, steps)
        first = {r.step: r for r in reversed(reading.records) if r.end > cursor.offset and r.step not in steps}
        return sorted(first.values(), key=lambda record: record.end), reading.end

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
        parent = next((s for s in sweeps if s.study == run.info.study), None)
        if parent is not None:
            first["rlvr.sweep_id"] = parent.sweep_id
            first["mlflow.parentRunId"] = self._adopt_sweep(client, parent).mlflow_run_id
        key = {name: first[name] for name in ("rlvr.run_id", "rlvr.created") if name in first}
        experiment_id = client.experiment(run.info.study or EXPERIMENT)
        mlflow_run_id = client.find_or_create(experiment_id, run.name, key, first, run.info.created)
        client.send_params(mlflow_run_id, values)
        cursor = Cursor(experiment_id, client.identity(experiment_id), mlflow_run_id)
        cursor.save(run.directory, self.uri)
        return cursor

    def _adopt_sweep(self, client: Client, sweep: Sweep) -> Cursor:
        """The cursor of a sweep's parent run, found or made like that of a run."""
        directory = self.ledger.sweep_dir(sweep.sweep_id)
        cursor = Cursor.load(directory, self.uri)
        if not _is_valid(client, cursor):
            key = {"rlvr.sweep_id": sweep.sweep_id, "rlvr.kind": "sweep"}
            first = {**key, "rlvr.command": redact(sweep.command)[: tags.MAX_VALUE]}
            experiment_id = client.experiment(sweep.study or EXPERIMENT)
            parent = client.find_or_create(experiment_id, tags.name_of_sweep(sweep), key, first, sweep.created)
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
        status = tags.status_of_sweep([state.state for state in states])
        self._update(client, directory, cursor, {}, status, max((s.end_time or 0.0 for s in states), default=0.0))

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
        path, offset = layout.journal(run.directory), Cursor.load(run.directory, self.uri).offset
        return path.read_bytes()[offset:].count(b"\n") if path.exists() else 0

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
