"""One run's journal as an Arrow table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from rlvr.ledger import journal

STEP = "step"


class Journal(NamedTuple):
    """table: `step`, ascending, and a column per metric (null: not logged). faults: lines that are left out."""

    table: pa.Table
    faults: tuple[str, ...] = ()


def read(file: Path) -> Journal:
    """Parse a journal file. The first record of a step counts; damaged and torn lines are left out and listed."""
    reading = journal.read(file)
    of_step = {record.step: record for record in reversed(reading.records)}
    records = [of_step[step] for step in sorted(of_step)]
    names = dict.fromkeys(name for record in records for name in record.metrics)
    columns = {name: pa.array([r.metrics.get(name) for r in records], pa.float64()) for name in names}
    table = pa.table({STEP: pa.array([r.step for r in records], pa.int64()), **columns})
    return Journal(table, (*reading.damaged, *(["the last one is torn"] if reading.torn else [])))


def wide(rows: pd.DataFrame) -> pa.Table:
    """The journal's table of one run's rows. rows: step, name, value."""
    by_name = rows.pivot(index="step", columns="name", values="value").sort_index()
    columns = {str(name): pa.array(by_name[name].to_numpy(float), from_pandas=True) for name in by_name.columns}
    return pa.table({STEP: by_name.index.to_numpy(), **columns})


def long(table: pa.Table) -> pa.Table:
    """step, name, value of everything in a journal's table: the inverse of `wide`."""
    columns = pa.schema([(STEP, pa.int64()), ("name", pa.string()), ("value", pa.float64())])
    parts = [columns.empty_table()]
    for name in (name for name in table.column_names if name != STEP):
        logged = table.select([STEP, name]).filter(table[name].is_valid())
        parts.append(pa.table([logged[STEP], pa.repeat(name, logged.num_rows), logged[name]], schema=columns))
    return pa.concat_tables(parts)
