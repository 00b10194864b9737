"""mlflow.json of a run or a sweep: for each MLflow store a cursor, which records what has arrived there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import newest_attempt, read_end
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.tags import redact

if TYPE_CHECKING:
    from rlvr.tracker.client import Client


@dataclass
class Cursor:
    """What of a run or sweep is in one store. Lines are identified by attempt and step, since lines may be deleted."""

    experiment_id: str = ""
    identity: str = ""  # of the experiment: its id alone may mean another one after the database was created anew
    mlflow_run_id: str = ""
    # Steps that have arrived, by the attempt that measured them: [first, last] of each unbroken series.
    steps: dict[str, list[list[int]]] = field(default_factory=dict[str, list[list[int]]])
    journal: list[int] = field(default_factory=list[int])  # `signature` of the journal when all of it had arrived
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    non_finite: dict[str, int] = field(default_factory=dict[str, int])
    damaged: list[str] = field(default_factory=list[str])  # damaged lines of the journal, which cannot be sent, and why
    runs: dict[str, str] = field(default_factory=dict[str, str])  # for a sweep: {run id: MLflow run}

    @classmethod
    def load(cls, directory: Path, uri: str) -> Cursor:
        """The cursor for a store; an empty one if there is none: the run is then looked up in MLflow."""
        return cls.of((read_json(layout.cursor(directory)) or {}).get(redact(uri)))

    @classmethod
    def of(cls, content: object) -> Cursor:
        """The cursor with this content in the file; an empty one if it is damaged, or of another version."""
        names = {field.name for field in fields(cls)}
        return cls(**content) if isinstance(content, dict) and set(content) == names else cls()

    def save(self, directory: Path, uri: str) -> None:
        path = layout.cursor(directory)
        write_json(path, {**(read_json(path) or {}), redact(uri): asdict(self)}, private=True)

    def is_of(self, client: Client) -> bool:
        """Whether it belongs to the database that the client writes to."""
        return bool(self.identity) and client.identity(self.experiment_id) == self.identity

    @property
    def arrived(self) -> set[int]:
        """Steps that are in MLflow, whichever attempt measured them."""
        return {step for steps in self._by_attempt().values() for step in steps}

    def add(self, records: Iterable[journal.Record]) -> None:
        """Record that these lines have arrived."""
        steps = self._by_attempt()
        for record in records:
            steps.setdefault(str(record.attempt), set()).add(record.step)
        self.steps = {attempt: _series(numbers) for attempt, numbers in steps.items()}

    def mark_missing(self, lost: Set[int]) -> None:
        """Record that these steps are not in MLflow after all: they will be sent again."""
        kept = {attempt: steps - lost for attempt, steps in self._by_attempt().items()}
        self.steps = {attempt: _series(numbers) for attempt, numbers in kept.items() if numbers}
        self.journal = []

    def _by_attempt(self) -> dict[str, set[int]]:
        return {
            attempt: {step for first, last in series for step in range(first, last + 1)}
            for attempt, series in self.steps.items()
        }


def send_changes(
    client: Client, directory: Path, cursor: Cursor, uri: str, current: Mapping[str, str], status: str, ended: float
) -> None:
    """Send the tags and the status that have changed since they were last sent. ended: see `Client.send_status`."""
    changed = {name: value for name, value in current.items() if cursor.tags.get(name) != value}
    if changed:
        client.send_tags(cursor.mlflow_run_id, changed)
    if cursor.status != status:
        client.send_status(cursor.mlflow_run_id, status, ended)
    if changed or cursor.status != status:
        cursor.tags, cursor.status = {**cursor.tags, **changed}, status
        cursor.save(directory, uri)


def is_behind(run_dir: Path) -> bool:
    """Whether the newest attempt has ended and this has not been shipped to any store. Reads at most four small files.

    So it is if the server was down when the run ended, or if the shipping process was killed.
    """
    number = newest_attempt(run_dir)
    newest, cursors = layout.attempt(run_dir, number), read_json(layout.cursor(run_dir))
    if not layout.end(newest).exists():
        return False
    now, end = signature(layout.journal(run_dir)), read_end(newest)

    def has_all(cursor: Cursor) -> bool:
        # Times of the files show nothing: lines are sent before the state, which was read before them, and clocks of
        # machines differ. What an earlier attempt has finished stays finished, and a run that has become unreadable is
        # shipped as that.
        final = (State.FINISHED, State.UNREADABLE)
        state, attempts = cursor.tags.get("rlvr.state"), cursor.tags.get("rlvr.attempts")
        knows_end = end is None or state in final or (state, attempts) == (end.cause.state, str(number))
        return now in ([0, 0], cursor.journal) and knows_end

    return not any(has_all(Cursor.of(content)) for content in (cursors or {}).values())


def _series(steps: Iterable[int]) -> list[list[int]]:
    """[first, last] of each unbroken series: for 1, 2, 3, 7 they are [1, 3] and [7, 7]."""
    series: list[list[int]] = []
    for step in sorted(steps):
        if series and series[-1][1] == step - 1:
            series[-1][1] = step
        else:
            series.append([step, step])
    return series


def signature(path: Path) -> list[int]:
    """Size in bytes and time of the last change in nanoseconds; [0, 0] if the file is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]
