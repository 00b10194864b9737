"""What a growing sweep keeps: all runs that it may come to, what it has begun, and what it has decided.

runs/sweeps/<id>/planned.jsonl   every run that may be wanted, composed and checked at launch: nothing is composed later
                 manifest.jsonl  those that are wanted: it grows by a wave at a time
                 sweep.json      beside what any sweep has: `until` and `tune`, each with its rule, fixed at launch, and
                                 what was decided since

All is written in one step each, decisions before what follows from them: a controller killed anywhere looks at nothing
twice and forgets no look.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.files import read_json_lines, write_text
from rlvr.ledger.identity import EXPECTED, NAMING
from rlvr.ledger.sweeps import TUNING, Ledger
from sweeps.planned import Planned, write_runs

FINAL = "final"


@dataclass(frozen=True)
class Candidate:
    """A run that the sweep may want. place: of its arm among the arms of the sweep; value: of the tuned knobs."""

    run: Planned
    place: int
    seed: int
    stage: str = FINAL
    value: str = ""

    def line(self) -> dict[str, Any]:
        about = {"place": self.place, "seed": self.seed, "stage": self.stage, "value": self.value}
        return {"run_id": self.run.run_id, **about, "run": asdict(self.run)}

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Candidate:
        told: dict[str, Any] = dict(line["run"])
        run = Planned(**told)
        run = replace(run, overrides=tuple(run.overrides), import_paths=tuple(run.import_paths))
        return cls(run, line["place"], line["seed"], line["stage"], line["value"])


@dataclass
class Record:
    """A growing sweep on the ledger. info: sweep.json; lines: the manifest's."""

    ledger: Ledger
    sweep_id: str
    info: dict[str, Any]
    candidates: Sequence[Candidate]
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @classmethod
    def read(cls, ledger: Ledger, sweep_id: str) -> Record:
        """Raises ValueError where there is none, or its plan cannot be read."""
        record = cls.found(ledger, sweep_id)
        if not record.candidates:
            path = layout.planned(ledger.sweep_dir(sweep_id))
            raise ValueError(f"{path} is damaged or missing: sweep {sweep_id} cannot go on. Repeat its launch.")
        return record

    @classmethod
    def found(cls, ledger: Ledger, sweep_id: str) -> Record:
        """As `read`; without candidates where those cannot be read: a repeated command has composed them again."""
        sweep, directory = ledger.sweep(sweep_id), ledger.sweep_dir(sweep_id)
        if not sweep.info:
            raise ValueError(
                f"{layout.sweep_info(directory)} is damaged, or of another version: what sweep {sweep_id} has decided "
                f"cannot be read. Put it back, or delete {directory} and repeat the launch: finished runs are kept."
            )
        planned, damaged = read_json_lines(layout.planned(directory), "run")
        candidates = [] if damaged else [Candidate.of(line) for line in planned]
        return cls(ledger, sweep_id, dict(sweep.info), candidates, [dict(line) for line in sweep.runs])

    @staticmethod
    def stands(ledger: Ledger, sweep_id: str) -> bool:
        """Is it on the ledger? sweep.json is what is written first."""
        return layout.sweep_info(ledger.sweep_dir(sweep_id)).exists()

    def write(self) -> None:
        """Put it on the ledger, or where it stands what a repeated command changes. Hold `controller.owned`."""
        if self.stands(self.ledger, self.sweep_id):  # also if another command has just written it
            self.repeat()
            self.rename()
        else:
            self.create()

    def create(self) -> None:
        """Put it on the ledger, with no run begun."""
        self.save()
        self._write_candidates()

    def repeat(self) -> None:
        """Keep the configs of a repeated command. Decisions and runs begun are left to who decides (controller.py)."""
        self._write_candidates()
        write_runs([each.run for each in self.begun], self.ledger, self.info)

    def rename(self) -> None:
        """Keep what a repeated command says of the sweep (`called_anew`). Hold `controller.owned`."""
        now = Record.read(self.ledger, self.sweep_id)  # what was decided since stays
        if now.info != (info := called_anew(now.info, self.info)):
            replace(now, info=info).save()

    def _write_candidates(self) -> None:
        lines = "".join(json.dumps(each.line()) + "\n" for each in self.candidates)
        write_text(layout.planned(self.ledger.sweep_dir(self.sweep_id)), lines, private=True)

    def composed_anew(self, candidates: Sequence[Candidate]) -> Record:
        """With the configs of the same runs as another command composed them; all of it where it has no candidates."""
        newest = {each.run.run_id: each.run for each in candidates}

        def renewed(run: Planned) -> Planned:
            known = newest.get(run.run_id, run)
            return replace(run, config=known.config, import_paths=known.import_paths)

        return replace(
            self, candidates=[replace(each, run=renewed(each.run)) for each in self.candidates or candidates]
        )

    def save(self) -> None:
        self.ledger.record_sweep(self.sweep_id, self.info, self.lines)

    def begin(self, wave: Iterable[Candidate]) -> None:
        """Put runs on the ledger and in the sweep, in this order. Harmless when repeated."""
        known = {line["run_id"] for line in self.lines}
        fresh = [each for each in wave if each.run.run_id not in known]
        write_runs([each.run for each in fresh], self.ledger, self.info)
        for each in fresh:
            line = each.run.line(len(self.lines), each.run.overrides)
            self.lines.append({**line, "stage": TUNING} if each.stage == TUNING else line)
        if fresh:
            self.save()

    @property
    def begun(self) -> list[Candidate]:
        wanted = {line["run_id"] for line in self.lines}
        return [each for each in self.candidates if each.run.run_id in wanted]

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """Of the runs begun, by id."""
        return {each.run.run_id: each.run.config for each in self.begun}


def called_anew(info: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    """sweep.json with the name, the tags, the tracker and, unless a rule was fixed by them, the expectations of a newer
    command.
    """
    keys = (*NAMING, "tracker") if "until" in info else (*NAMING, "tracker", *EXPECTED)
    kept = {key: value for key, value in info.items() if key not in keys}
    return kept | {key: newest[key] for key in keys if key in newest}


def first_wave(record: Record) -> list[Candidate]:
    """What is run before anything is known."""
    if "tune" in record.info:
        return [each for each in record.candidates if each.stage == TUNING]
    seeds = wave_seeds(record)[: record.info["until"]["seeds"][0]]
    return [each for each in record.candidates if each.seed in seeds]


def wave_seeds(record: Record) -> list[int]:
    """The seeds of reported runs, in the order in which they are used."""
    return sorted({each.seed for each in record.candidates if each.stage == FINAL})
