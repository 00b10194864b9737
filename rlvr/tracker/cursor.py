"""What of a run, or of a sweep, is in one MLflow store: mlflow.json beside it, with a cursor for each store."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.files import read_json, write_json
from rlvr.ledger.tags import redact


@dataclass
class Cursor:
    """Lines are counted by attempt and step, not by their place in the journal: of that, lines may be deleted."""

    experiment_id: str = ""
    identity: str = ""  # of the experiment: an id alone means nothing in a database that was made anew
    mlflow_run_id: str = ""
    # Steps that have arrived, by the attempt that measured them: [first, last] of each unbroken series.
    steps: dict[str, list[list[int]]] = field(default_factory=dict[str, list[list[int]]])
    journal: list[int] = field(default_factory=list[int])  # `signature` of the journal when all of it had arrived
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    non_finite: dict[str, int] = field(default_factory=dict[str, int])
    damaged: list[str] = field(default_factory=list[str])  # lines of the journal that cannot arrive, and why
    runs: dict[str, str] = field(default_factory=dict[str, str])  # of a sweep: the MLflow run of each of its runs

    @classmethod
    def load(cls, directory: Path, uri: str) -> Cursor:
        """An empty one if there is none: the run is then looked up in MLflow."""
        content = (read_json(layout.cursor(directory)) or {}).get(redact(uri))
        known = {f.name for f in fields(cls)}
        return cls(**content) if isinstance(content, dict) and set(content) == known else cls()

    def save(self, directory: Path, uri: str) -> None:
        path = layout.cursor(directory)
        write_json(path, {**(read_json(path) or {}), redact(uri): asdict(self)})

    @property
    def arrived(self) -> set[int]:
        """Steps that are in MLflow, whichever attempt measured them."""
        return {step for steps in self._by_attempt().values() for step in steps}

    def add(self, records: Iterable[journal.Record]) -> None:
        """These lines have arrived."""
        steps = self._by_attempt()
        for record in records:
            steps.setdefault(str(record.attempt), set()).add(record.step)
        self.steps = {attempt: _series(each) for attempt, each in steps.items()}

    def take_back(self, lost: Set[int]) -> None:
        """These steps are not in MLflow after all: they are to be sent again."""
        kept = {attempt: steps - lost for attempt, steps in self._by_attempt().items()}
        self.steps = {attempt: _series(each) for attempt, each in kept.items() if each}
        self.journal = []

    def _by_attempt(self) -> dict[str, set[int]]:
        return {
            attempt: {step for first, last in series for step in range(first, last + 1)}
            for attempt, series in self.steps.items()
        }


def is_behind(run_dir: Path) -> bool:
    """Has an attempt of the run ended of which no store has heard yet? Reads three small files at most.

    That is so where the server was away when the run ended, or whoever ships was killed.
    """
    newest = layout.attempt(run_dir, newest_attempt(run_dir))
    ended, cursors = signature(layout.end(newest)), read_json(layout.cursor(run_dir))
    if ended == [0, 0]:
        return False
    if cursors is None or signature(layout.cursor(run_dir))[1] < ended[1]:
        return True
    now = signature(layout.journal(run_dir))
    return all(content.get("journal") != now for content in cursors.values() if isinstance(content, dict))


def _series(steps: Iterable[int]) -> list[list[int]]:
    """[first, last] of each unbroken series: of 1, 2, 3, 7 they are [1, 3] and [7, 7]."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and found[-1][1] == step - 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return found


def signature(path: Path) -> list[int]:
    """Size in bytes and time of the last change in nanoseconds; [0, 0] of a file that is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]
