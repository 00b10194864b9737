"""One run's journal as an Arrow table, by Arrow's parser where the journal is intact, else line by line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json as pj

from rlvr.ledger import journal

STEP = "step"


class Journal(NamedTuple):
    """table: `step`, ascending, and a column per metric (null: not logged). faults: lines that are left out."""

    table: pa.Table
    faults: tuple[str, ...] = ()


def read(file: Path) -> Journal:
    """Parse a journal file. The first record of a step counts; damaged and torn lines are left out and listed."""
    lines = file.read_bytes().split(b"\n")
    intact = lines.pop() == b"" and not any(map(journal.fault_of, lines))
    table = _columns(lines) if intact and lines else None
    faults: tuple[str, ...] = ()
    if table is None:
        reading = journal.read(file)
        faults = (*reading.damaged, *(["the last one is torn"] if reading.torn else []))
        table = _records(reading.records)
    steps = table[STEP].to_numpy()
    _, first = np.unique(steps, return_index=True)
    return Journal(table if np.array_equal(first, np.arange(len(steps))) else table.take(first), faults)


def _columns(lines: Sequence[bytes]) -> pa.Table | None:
    """The journal's table by Arrow's JSON parser, three times as fast as Python's. None if a value is not a number:
    values that are not finite are written as text."""
    data = b"\n".join(lines)
    options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pj.read_json(io.BytesIO(data), read_options=options)
    except pa.ArrowInvalid:
        return None
    metrics = table["metrics"].combine_chunks()
    columns = {field.name: column for field, column in zip(metrics.type, metrics.flatten(), strict=True)}
    if not all(pa.types.is_floating(c.type) or pa.types.is_integer(c.type) for c in columns.values()):
        return None
    return pa.table({STEP: table[STEP].cast(pa.int64()), **{k: c.cast(pa.float64()) for k, c in columns.items()}})


def _records(records: Sequence[journal.Record]) -> pa.Table:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    columns = {name: pa.array([r.metrics.get(name) for r in records], pa.float64()) for name in names}
    return pa.table({STEP: pa.array([r.step for r in records], pa.int64()), **columns})


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
