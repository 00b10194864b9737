"""The tables of the runs of a home: derived from their files, and cached. And those of a store of MLflow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from analysis.frames import cache, journals
from analysis.frames.counts import Counts, counted
from analysis.frames.digest import CACHED_METRICS, digest_of, thinned
from analysis.frames.samples import read_table
from analysis.frames.tables import METRICS, POLICY, USUAL, WHOLE, Tables, joined, of_run, schema
from rlvr.ledger import layout


class RunFiles:
    """The files of runs of a home."""

    def __init__(self, home: Path, run_ids: Sequence[str]) -> None:
        self.home, self.run_ids = home, list(run_ids)
        self._folders = {run_id: layout.run(home, run_id) for run_id in run_ids}
        self._journals = {run_id: layout.journal(folder) for run_id, folder in self._folders.items()}
        self._evaluations = {run_id: layout.evaluations(folder) for run_id, folder in self._folders.items()}
        self._states = {run_id: cache.state_of([file]) for run_id, file in self._journals.items()}
        self._evaluation_states = {run_id: cache.state_of(files) for run_id, files in self._evaluations.items()}
        # Several tables are derived from one journal, which is parsed once for all of them.
        self._derived = functools.cache(lambda run_id: _derived(self._journals[run_id]))

    def tables(self) -> Tables:
        """Those of frames/tables.py but for texts and responses, which are in the files of samples."""
        return Tables(
            {
                "counts": functools.cache(lambda: self._cached("counts", self._evaluation_states, self._counted)),
                "digest": functools.cache(lambda: self._of_journals("digest")),
                USUAL: lambda: self._of_journals(USUAL),
                "drawn": lambda: self._cached("drawn", self._states, lambda i: thinned(self._journal(i))),
                METRICS: self._logged,
                "policy": lambda: joined("policy", [of_run(i, table) for i, table in self._policies[0].items()]),
            }
        )

    def notes_on_journals(self) -> list[str]:
        """A line for each journal that could not be read as a whole."""
        rows = self._of_journals("faults").to_pylist()
        return [
            f"{self._journals[row['run_id']]}: {len(row['faults'])} unreadable line(s) left out: "
            f"{', '.join(row['faults'])}."
            for row in rows
            if row["faults"]
        ]

    def notes_on_samples(self, counts: Counts) -> list[str]:
        """A line on the samples of `counts` that were not judged, and one for each damaged file."""
        failed = f"{counts.num_errors} evaluation sample(s) whose verifier failed are left out of every average"
        files = [(run_id, file) for run_id, of_run in self._evaluations.items() for file in of_run]
        damaged = [file for run_id, file in files if (run_id, layout.step_of(file)) not in counts.evaluations]
        remedy = (
            "is damaged and left out. The metrics of that step in metrics.jsonl are used; put the file back if there "
            "is a copy, else delete it."
        )
        not_judged = [f"{failed} and counted."] if counts.num_errors else []
        return [*not_judged, *(f"{file} {remedy}" for file in [*damaged, *self._policies[1]])]

    def _cached(self, kind: str, states: Mapping[str, str], parse: Callable[[str], pa.Table]) -> pa.Table:
        rows = cache.rows(self.home, kind, states, parse)
        return rows if rows.num_rows or kind == "faults" else joined(kind, [])

    def _of_journals(self, kind: str) -> pa.Table:
        return self._cached(kind, self._states, lambda run_id: self._derived(run_id)[kind])

    def _journal(self, run_id: str) -> pa.Table:
        return journals.read(self._journals[run_id]).table

    def _logged(self) -> pa.Table:
        existing = [run_id for run_id, state in self._states.items() if state]
        return joined(METRICS, [of_run(run_id, journals.long(self._journal(run_id))) for run_id in existing])

    def _counted(self, run_id: str) -> pa.Table:
        tables = {file: read_table(file, ("source", "problem_id", "outcome")) for file in self._evaluations[run_id]}
        parts = [counted(table, layout.step_of(file) or 0) for file, table in tables.items() if table is not None]
        return joined("counts", parts) if parts else schema("counts").empty_table().drop_columns("run_id")

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


def _derived(file: Path) -> dict[str, pa.Table]:
    table, faults = journals.read(file)
    of_faults = pa.table({"faults": pa.array([list(faults)], pa.list_(pa.string()))})
    return {"digest": digest_of(table), USUAL: thinned(table, CACHED_METRICS), "faults": of_faults}


def tables_of_store(files: RunFiles, logged: pd.DataFrame) -> Tables:
    """The tables of runs whose metrics MLflow stores, with the samples of the home, if it has them. logged: run_id,
    step, name, value."""
    of_runs = {str(run_id): journals.wide(rows) for run_id, rows in logged.groupby("run_id")}
    of_files = files.tables()

    def derived(name: str, derive: Callable[[pa.Table], pa.Table]) -> pa.Table:
        return joined(name, [of_run(run_id, derive(table)) for run_id, table in of_runs.items()])

    return Tables(
        {
            "counts": lambda: of_files["counts"],
            "policy": lambda: of_files["policy"],
            "digest": functools.cache(lambda: derived("digest", digest_of)),
            **dict.fromkeys(("drawn", USUAL), lambda: derived("drawn", thinned)),
            METRICS: lambda: pa.Table.from_pandas(logged, preserve_index=False),
        }
    )
