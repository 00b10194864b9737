"""The tables of the runs of a home: derived from their files. And those of a store of MLflow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from analysis.frames.counts import counted
from analysis.frames.digest import digest_of, thinned
from analysis.frames.samples import read_table
from analysis.frames.tables import METRICS, POLICY, WHOLE, Tables, joined
from rlvr.ledger import journal, layout


class Journal(NamedTuple):
    """table: `step`, ascending, and a column per metric (null: not logged). faults: lines that are left out."""

    table: pa.Table
    faults: tuple[str, ...] = ()


class Derived(NamedTuple):
    """What is kept of a journal. faults: as Journal's."""

    digest: pa.Table
    drawn: pa.Table
    last_step: int
    faults: tuple[str, ...]

    @classmethod
    def of(cls, read: Journal) -> Derived:
        steps = read.table["step"]
        last = steps[-1].as_py() if len(steps) else 0
        return cls(digest_of(read.table), thinned(read.table), last, read.faults)


class RunFiles:
    """The files of runs of a home."""

    def __init__(self, home: Path, run_ids: Sequence[str]) -> None:
        self.run_ids = list(run_ids)
        self._folders = {run_id: layout.run(home, run_id) for run_id in run_ids}

    def tables(self) -> Tables:
        """Those of frames/tables.py but for texts and responses, which are in the files of samples."""
        return Tables(
            {
                "counts": lambda: self._counted[0],
                "digest": lambda: joined("digest", ((i, of.digest) for i, of in self._derived.items())),
                "drawn": functools.cache(lambda: joined("drawn", ((i, of.drawn) for i, of in self._derived.items()))),
                METRICS: lambda: joined(METRICS, ((i, _long(read.table)) for i, read in self._journals())),
                "policy": lambda: joined("policy", self._policies[0].items()),
            }
        )

    def last_step(self, run_id: str) -> int:
        """The last step in the journal of a run; 0 if there is none."""
        return self._derived[run_id].last_step if run_id in self._derived else 0

    def notes_on_journals(self) -> list[str]:
        """A line for each journal that could not be read as a whole."""
        return [
            f"{layout.journal(self._folders[i])}: {len(of.faults)} unreadable line(s) left out: {', '.join(of.faults)}."
            for i, of in self._derived.items()
            if of.faults
        ]

    def notes_on_samples(self) -> list[str]:
        """A line on the samples that were not judged, and one for each damaged file."""
        counts, damaged = self._counted
        num_errors = int(counts["errors"].to_numpy().sum())
        failed = f"{num_errors} evaluation sample(s) whose verifier failed are left out of every average"
        remedy = (
            "is damaged and left out. The metrics of that step in metrics.jsonl are used; put the file back if there "
            "is a copy, else delete it."
        )
        not_judged = [f"{failed} and counted."] if num_errors else []
        return [*not_judged, *(f"{file} {remedy}" for file in [*damaged, *self._policies[1]])]

    def _journals(self) -> Iterator[tuple[str, Journal]]:
        for run_id, folder in self._folders.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                yield run_id, read_journal(layout.journal(folder))

    @functools.cached_property
    def _derived(self) -> dict[str, Derived]:
        """By run; the journals themselves are not kept: many fill a memory."""
        return {i: Derived.of(read) for i, read in self._journals()}

    @functools.cached_property
    def _counted(self) -> tuple[pa.Table, list[Path]]:
        """(the counts of all evaluations, the files that cannot be read)."""
        parts: list[tuple[str, pa.Table]] = []
        damaged: list[Path] = []
        for run_id, folder in self._folders.items():
            for file in layout.evaluations(folder):
                table = read_table(file, ("source", "problem_id", "outcome"))
                if table is None or not table.num_rows:
                    damaged.append(file)
                else:
                    parts.append((run_id, counted(table, layout.step_of(file) or 0)))
        return joined("counts", parts), damaged

    @functools.cached_property
    def _policies(self) -> tuple[dict[str, pa.Table], list[Path]]:
        """(by run its last policy, the files that cannot be read). An older file is no substitute for the last."""
        policies: dict[str, pa.Table] = {}
        damaged: list[Path] = []
        for run_id, folder in self._folders.items():
            for file in layout.policies(folder)[-1:]:
                table = read_table(file, POLICY)
                if table is None:
                    damaged.append(file)
                else:
                    step = pa.array([layout.step_of(file)] * table.num_rows, WHOLE)
                    policies[run_id] = table.sort_by("arm").add_column(0, "step", step)
        return policies, damaged


def tables_of_store(files: RunFiles, logged: pd.DataFrame) -> Tables:
    """The tables of runs whose metrics MLflow stores, with the samples of the home, if it has them. logged: run_id,
    step, name, value."""
    of_runs = {str(run_id): _wide(rows) for run_id, rows in logged.groupby("run_id")}
    of_files = files.tables()

    def derived(name: str, derive: Callable[[pa.Table], pa.Table]) -> pa.Table:
        return joined(name, ((run_id, derive(table)) for run_id, table in of_runs.items()))

    return Tables(
        {
            "counts": lambda: of_files["counts"],
            "policy": lambda: of_files["policy"],
            "digest": functools.cache(lambda: derived("digest", digest_of)),
            "drawn": lambda: derived("drawn", thinned),
            METRICS: lambda: pa.Table.from_pandas(logged, preserve_index=False),
        }
    )


# --- journals


def read_journal(file: Path) -> Journal:
    """Parse a journal file. The first record of a step counts; damaged and torn lines are left out and listed."""
    reading = journal.read(file)
    of_step = {record.step: record for record in reversed(reading.records)}
    records = [of_step[step] for step in sorted(of_step)]
    names = dict.fromkeys(name for record in records for name in record.metrics)
    columns = {name: pa.array([r.metrics.get(name) for r in records], pa.float64()) for name in names}
    table = pa.table({"step": pa.array([r.step for r in records], pa.int64()), **columns})
    return Journal(table, (*reading.damaged, *(["the last one is torn"] if reading.torn else [])))


def _wide(rows: pd.DataFrame) -> pa.Table:
    """The journal's table of one run's rows. rows: step, name, value."""
    by_name = rows.pivot(index="step", columns="name", values="value").sort_index()
    columns = {str(name): pa.array(by_name[name].to_numpy(float), from_pandas=True) for name in by_name.columns}
    return pa.table({"step": by_name.index.to_numpy(), **columns})


def _long(table: pa.Table) -> pa.Table:
    """step, name, value of everything in a journal's table: the inverse of `_wide`."""
    columns = pa.schema([("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())])
    parts = [columns.empty_table()]
    for name in (name for name in table.column_names if name != "step"):
        logged = table.select(["step", name]).filter(table[name].is_valid())
        parts.append(pa.table([logged["step"], pa.repeat(name, logged.num_rows), logged[name]], schema=columns))
    return pa.concat_tables(parts)
