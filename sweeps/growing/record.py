"""The files of a growing sweep: all runs that it may need, those that it has begun, and its decisions.

runs/sweeps/<id>/planned.jsonl   every run that may be needed, composed and checked at launch: none is composed later
                 manifest.jsonl  the runs begun: it grows by one wave at a time
                 sweep.json      beside the keys of any sweep: `until` and `tune`, each with its rule, fixed at launch,
                                 and the decisions since

Each file is written atomically, and a decision before the runs that follow from it: a controller that is killed at any
point takes no decision twice and loses none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.files import read_json_lines, write_text
from rlvr.ledger.identity import EXPECTED, NAMING
from rlvr.ledger.lock import held_lock
from rlvr.ledger.sweeps import TUNING, Ledger
from sweeps.planned import PlannedRun, write_runs

FINAL = "final"


@dataclass(frozen=True)
class Candidate:
    """A run that the sweep may need. place: index of its arm in the sweep; value: overrides of the tuned knobs."""

    run: PlannedRun
    place: int
    seed: int
    stage: str = FINAL
    value: str = ""

    def line(self) -> dict[str, Any]:
        return {"run_id": self.run.run_id, **asdict(self)}

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Candidate:
        fields: dict[str, Any] = dict(line["run"])
        for name in ("overrides", "import_paths"):
            fields[name] = tuple(fields[name])
        return cls(PlannedRun(**fields), line["place"], line["seed"], line["stage"], line["value"])


@dataclass
class GrowingRecord:
    """A growing sweep on the ledger. info: sweep.json; lines: the manifest's."""

    ledger: Ledger
    sweep_id: str
    info: dict[str, Any]
    candidates: Sequence[Candidate]
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @classmethod
    def read(cls, ledger: Ledger, sweep_id: str) -> GrowingRecord:
        """Raises ValueError where there is none, or its plan cannot be read."""
        record = cls.read_partial(ledger, sweep_id)
        if not record.candidates:
            path = layout.planned(ledger.sweep_dir(sweep_id))
            raise ValueError(f"{path} is damaged or missing: sweep {sweep_id} cannot continue. Repeat its launch.")
        return record

    @classmethod
    def read_partial(cls, ledger: Ledger, sweep_id: str) -> GrowingRecord:
        """As `read`, but without candidates if those cannot be read: a repeated command composes them again."""
        sweep, directory = ledger.sweep(sweep_id), ledger.sweep_dir(sweep_id)
        if not sweep.info:
            raise ValueError(
                f"{layout.sweep_info(directory)} is damaged, or of another version: what sweep {sweep_id} has decided "
                f"cannot be read. Put it back, or delete {directory} and repeat the launch: finished runs are kept."
            )
        planned, damaged = read_json_lines(layout.planned(directory), "run")
        candidates = [] if damaged else [Candidate.of(line) for line in planned]
        return cls(ledger, sweep_id, dict(sweep.info), candidates, [dict(line) for line in sweep.runs])

    @classmethod
    def known(cls, ledger: Ledger, sweep_id: str) -> GrowingRecord | None:
        """As `read_partial`; None for a sweep that is not on the ledger: sweep.json is its first file."""
        is_there = layout.sweep_info(ledger.sweep_dir(sweep_id)).exists()
        return cls.read_partial(ledger, sweep_id) if is_there else None

    def write(self) -> None:
        """Put the sweep on the ledger. If it is there already, its decisions and the runs begun stay as they are, and
        get the configs, the name and the tracker of this record, which a repeated command has composed.

        Call it inside `deciding_lock_held`.
        """
        current = GrowingRecord.known(self.ledger, self.sweep_id)
        written = self if current is None else self.continuing(current)
        if current is None or written.info != current.info:
            written.save()
        lines = "".join(json.dumps(candidate.line()) + "\n" for candidate in written.candidates)
        write_text(layout.planned(self.ledger.sweep_dir(self.sweep_id)), lines, private=True)
        write_runs([candidate.run for candidate in written.begun], self.ledger, written.info)

    def continuing(self, earlier: GrowingRecord) -> GrowingRecord:
        """This record, which a command has composed, with the decisions and runs begun of an earlier one of the sweep,
        and with its expectations if the stopping rule of `until` has fixed those. Where the candidates of that could
        not be read, they are all of this one.
        """
        newest_runs = {candidate.run.run_id: candidate.run for candidate in self.candidates}

        def updated(candidate: Candidate) -> Candidate:
            run = newest_runs.get(candidate.run.run_id, candidate.run)
            return replace(candidate, run=replace(candidate.run, config=run.config, import_paths=run.import_paths))

        candidates = [updated(candidate) for candidate in earlier.candidates or self.candidates]
        newest = (*NAMING, "tracker") if "until" in earlier.info else (*NAMING, "tracker", *EXPECTED)
        kept = {key: value for key, value in earlier.info.items() if key not in newest}
        info = kept | {key: self.info[key] for key in newest if key in self.info}
        return replace(self, info=info, candidates=candidates, lines=earlier.lines)

    def save(self) -> None:
        self.ledger.record_sweep(self.sweep_id, self.info, self.lines)

    def begin(self, wave: Iterable[Candidate]) -> None:
        """Put runs on the ledger and in the sweep, in this order. Harmless when repeated."""
        known = {line["run_id"] for line in self.lines}
        new = [candidate for candidate in wave if candidate.run.run_id not in known]
        write_runs([candidate.run for candidate in new], self.ledger, self.info)
        for candidate in new:
            line = candidate.run.line(len(self.lines), candidate.run.overrides)
            self.lines.append({**line, "stage": TUNING} if candidate.stage == TUNING else line)
        if new:
            self.save()

    @property
    def begun(self) -> list[Candidate]:
        run_ids = {line["run_id"] for line in self.lines}
        return [candidate for candidate in self.candidates if candidate.run.run_id in run_ids]

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """The configs of the runs begun, by run id."""
        return {candidate.run.run_id: candidate.run.config for candidate in self.begun}


class AlreadyDeciding(ValueError):
    """Raised when another process holds the lock under which the next wave of a sweep is decided."""


def deciding_lock_held(ledger: Ledger, sweep_id: str, wait_s: float = 0.0) -> contextlib.AbstractContextManager[int]:
    """Hold the lock under which the next wave of a sweep is decided, and yield it. Raises AlreadyDeciding if it is held
    elsewhere.
    """
    path = layout.deciding_lock(ledger.sweep_dir(sweep_id))
    follow = f"To follow it: python -m sweeps watch {sweep_id}"
    busy = AlreadyDeciding(f"another process decides the next wave of this sweep ({path}). {follow}")
    return held_lock(path, wait_s, busy)
