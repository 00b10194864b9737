"""The report that was made last: where nothing has changed since, it is shown again in place of being made again."""

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
    """The title of a study, or of a sweep of one, as one folder name."""
    return re.sub(r"[^\w.-]+", "-", title.replace(", sweep ", "-")).strip("-.") or "study"


def joined(names: Sequence[str]) -> str:
    """Names as one; of more than three the first, how many more there are, and a hash of all: a file name is short."""
    if len(names) <= 3:
        return "-".join(names)
    return f"{names[0]}-and-{len(names) - 1}-more-{hashlib.sha256(repr(list(names)).encode()).hexdigest()[:8]}"


@dataclass
class Report:
    """What was printed and written. key: of everything that it was made from; "" where that is not known."""

    file: Path
    key: str
    outcomes: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, frames: Frames, out: Path, asked: Mapping[str, str], console: Console) -> Report:
        """asked: the options of the command line."""
        if frames.home is None or frames.origin != "ledger":
            return cls(out, "")
        parts = [
            *(part for each in (frames, frames.tuned) if each is not None for part in _of_runs(each, frames.home)),
            json.dumps([sweep.info for sweep in frames.sweeps], sort_keys=True, default=str),
            repr((frames.notes, frames.commands)),
            repr((sorted(asked.items()), console.width, console.is_terminal)),
            _code(),
        ]
        key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
        return cls(layout.remembered_report(frames.home, name), key)

    def unchanged(self) -> str | None:
        """What was printed, if the same was asked of the same runs and its files are there still; else None."""
        known = read_json(self.file) if self.key else None
        if not known or known.get("key") != self.key:
            return None
        files: dict[str, str] = known["files"]
        if any(cache.state_of([Path(path)]) != state for path, state in files.items()):
            return None
        self.outcomes = set(known["outcomes"])
        return str(known["text"])

    def keep(self, text: str, outcomes: set[str], files: Sequence[Path]) -> None:
        """Remember it, if it can be."""
        if not self.key:
            return
        states = {str(path): cache.state_of([path]) for path in files}
        known = {"key": self.key, "outcomes": sorted(outcomes), "text": text, "files": states}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, known, durable=False)
        except OSError:
            return


def _of_runs(frames: Frames, home: Path) -> tuple[str, ...]:
    """What tells one state of runs, and of the files that a report reads of them, from another."""
    folders = {run.run_id: layout.run(home, run.run_id) for run in frames.rows}
    diversity = {i: cache.state_of([layout.diversity(f), *layout.all_embeddings(f)]) for i, f in folders.items()}
    states = (frames.curves.states, frames.judgements.states, diversity)
    return frames.runs.to_json(), repr([sorted(each.items()) for each in states])


def _code() -> str:
    """What tells this version of the analysis from another one."""
    root = Path(analysis.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".html", ".css", ".js", ".yaml"))
    return cache.state_of(files)
