"""mlflow.json of a run or a sweep: for each MLflow store a cursor, which records what has arrived there."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import newest_attempt, read_end
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.lock import held_lock
from rlvr.ledger.tags import redact

if TYPE_CHECKING:
    from rlvr.tracker.client import Client

FRESH_S = 60.0


@dataclass
class Cursor:
    """What of a run or sweep is in one store. Of a journal, the records that count (`journal.Follower`) are counted."""

    experiment_id: str = ""
    identity: str = ""  # of the experiment: its id alone may mean another one after the database was created anew
    mlflow_run_id: str = ""
    sent: int = 0  # number of records that have arrived: the first ones of the journal
    checksum: int = 0  # of these records (`checksum_of`): the journal no longer begins with them if lines were deleted
    journal: list[int] = field(default_factory=list[int])  # `signature` of the journal when all of it had arrived
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    non_finite: dict[str, int] = field(default_factory=dict[str, int])
    damaged: list[str] = field(default_factory=list[str])  # damaged lines of the journal, which cannot be sent, and why
    runs: dict[str, str] = field(default_factory=dict[str, str])  # for a sweep: {run id: MLflow run}

    @classmethod
    def load(cls, directory: Path, uri: str) -> Cursor:
        """The cursor for a store; an empty one if there is none: the run is then sent as a whole."""
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

    def add(self, records: Iterable[journal.Record]) -> None:
        """Record that these records, the next ones of the journal, have arrived."""
        batch = list(records)
        self.sent += len(batch)
        self.checksum = checksum_of(batch, self.checksum)


def forget(home: Path, directories: Iterable[Path]) -> None:
    """Delete the cursors of runs and sweeps: the next pass deletes what MLflow has of a run, and sends it anew."""
    path = layout.mlflow_lock(home)
    with held_lock(path, 60, ValueError(f"another pass holds {path}. Try again.")):  # it may write a cursor
        for directory in directories:
            layout.cursor(directory).unlink(missing_ok=True)


def checksum_of(records: Iterable[journal.Record], before: int = 0) -> int:
    """CRC-32 of these records. before: that of the records in front of them."""
    for record in records:
        content = (record.step, record.time, record.attempt, record.metrics)
        before = zlib.crc32(repr(content).encode(), before)
    return before


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
    """Whether no store has all that a run has logged, and its end if it has ended. Reads at most four small files.

    So it is if the server was down when the run ended, if the shipping process was killed, and on SLURM, where nothing
    ships a run before it has ended. Of a run that goes on, what was shipped in the last minute is all.
    """
    number = newest_attempt(run_dir)
    newest, cursors = layout.attempt(run_dir, number), read_json(layout.cursor(run_dir))
    if not layout.end(newest).exists() and (
        not number or (cursors and abs(time.time() - layout.cursor(run_dir).stat().st_mtime) < FRESH_S)
    ):
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


def signature(path: Path) -> list[int]:
    """Size in bytes and time of the last change in nanoseconds; [0, 0] if the file is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]
