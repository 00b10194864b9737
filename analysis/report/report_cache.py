"""Remembers the report that was built last: where nothing has changed since, it is shown again and not rebuilt."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

import analysis
from analysis.frames import cache
from analysis.frames.frames import Frames
from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json


def folder_name(title: str) -> str:
    """The title of a study, or of one of its sweeps, as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", title.replace(", sweep ", "-")).strip("-.") or "study"


def joined(names: Sequence[str]) -> str:
    """Names joined for a file name. Of more than three: the first, the number of the others, and a hash of all."""
    if len(names) <= 3:
        return "-".join(names)
    return f"{names[0]}-and-{len(names) - 1}-more-{hashlib.sha256(repr(list(names)).encode()).hexdigest()[:8]}"


@dataclass
class Report:
    """Where the record of a report is kept.

    key: a hash of everything that the report is built from; "" where that is not known, and nothing is remembered.
    outcomes: of the verdicts, set by `unchanged`.
    """

    file: Path
    key: str
    outcomes: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, frames: Frames, out: Path, options: Mapping[str, str], console: Console) -> Report:
        """The record of a report in the folder `out`. options: of the command line, as text by name."""
        if frames.home is None or frames.origin != "ledger":
            return cls(out, "")
        parts = [
            *_state_of_runs(frames, frames.home),
            *(_state_of_runs(frames.tuned, frames.home) if frames.tuned is not None else ()),
            json.dumps([sweep.info for sweep in frames.sweeps], sort_keys=True, default=str),
            repr((frames.notes, frames.commands)),
            repr((sorted(options.items()), console.width, console.is_terminal)),
            _state_of_code(),
        ]
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
        return cls(layout.remembered_report(frames.home, name), key)

    def unchanged(self) -> str | None:
        """The printed text of the remembered report, if it has this key and its files are unchanged; else None."""
        record = read_json(self.file) if self.key else None
        if not record or record.get("key") != self.key:
            return None
        files: dict[str, str] = record["files"]
        if any(cache.state_of([Path(path)]) != state for path, state in files.items()):
            return None
        self.outcomes = set(record["outcomes"])
        return str(record["text"])

    def keep(self, text: str, outcomes: set[str], files: Sequence[Path]) -> None:
        """Write the record of a report: its printed text, outcomes, and the state of its files.

        A failed write is ignored: the report is then rebuilt next time.
        """
        if not self.key:
            return
        states = {str(path): cache.state_of([path]) for path in files}
        record = {"key": self.key, "outcomes": sorted(outcomes), "text": text, "files": states}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, record, durable=False)
        except OSError:
            return


def _state_of_runs(frames: Frames, home: Path) -> tuple[str, ...]:
    """Texts that change whenever the runs, or the files that a report reads of them, change."""
    folders = {run.run_id: layout.run(home, run.run_id) for run in frames.rows}
    diversity = {i: cache.state_of([layout.diversity(f), *layout.all_embeddings(f)]) for i, f in folders.items()}
    states = (frames.curves.states, frames.judgements.states, diversity)
    return frames.runs.to_json(), repr([sorted(state.items()) for state in states])


def _state_of_code() -> str:
    """A text that changes whenever a file of the analysis changes."""
    root = Path(analysis.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".html", ".css", ".js", ".yaml"))
    return cache.state_of(files)
