"""What runs logged, as columns: a run's whole journal for figures, and a digest of all runs' for tables.

A table asks for few numbers of each run, all of them at its evaluations: what was logged there, the mean of a metric
of training over the steps before, the sum of times and tokens until then. The digest holds these alone. Both are kept
in the cache (analysis/frames/cache.py).
"""

from __future__ import annotations

import functools
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json as pj

from analysis.frames import cache
from analysis.frames.digest import DIGEST, digest_of
from analysis.frames.thin import thinned
from rlvr.ledger import journal, layout

_STEP = "step"


class Curves(Protocol):
    """What runs logged, wherever it is kept."""

    def digest(self) -> pd.DataFrame:
        """run_id, what, name, step, value: as `digest_of` has it."""
        ...

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of all metrics, or of these, sorted."""
        ...

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of training's metrics, or of these, as `thinned` has them."""
        ...

    def notes(self) -> list[str]:
        """What could not be read, a line for each run."""
        ...


@dataclass(frozen=True)
class Journal:
    """One run's. table: `step`, ascending, and a column per metric (null: not logged); faults: lines left out."""

    table: pa.Table
    faults: tuple[str, ...] = ()


class Journals:
    """Those of the runs of a home."""

    def __init__(self, home: Path, run_ids: Sequence[str]) -> None:
        self.home, self.run_ids = home, list(run_ids)
        files = {i: layout.journal(layout.run(home, i)) for i in self.run_ids}
        self._files = files
        self._states = {i: cache.state_of([file]) for i, file in files.items()}

    def digest(self) -> pd.DataFrame:
        """run_id, what, name, step, value: as `digest_of` has it."""
        found = cache.rows(self.home, "digest", self._states, self._digest)
        return found.to_pandas() if found.num_rows else pd.DataFrame(columns=["run_id", *DIGEST])

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of training's metrics, or of these, as `thinned` has them."""
        kind = "curves" if names is None else f"curves-{crc32(repr(sorted(names)).encode()):08x}"
        rows = cache.rows(self.home, kind, self._states, lambda run_id: thinned(self._whole(run_id).table, names))
        return drawable(rows)

    def notes(self) -> list[str]:
        """Lines that cannot be read, by run."""
        found = cache.rows(self.home, "faults", self._states, self._faults)
        pairs = zip(found["run_id"].to_pylist(), found["faults"].to_pylist(), strict=True) if found.num_rows else ()
        return [self._note(run_id, faults) for run_id, faults in pairs if faults]

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of all metrics, or of these, sorted."""
        columns = None if names is None else [_STEP, *sorted(names)]
        parts = cache.in_threads(functools.partial(self._long, columns=columns), self.run_ids)
        frame = pd.concat([_EMPTY, *parts], ignore_index=True) if any(map(len, parts)) else _EMPTY
        return frame.sort_values(["run_id", "name", "step"], ignore_index=True)

    def _note(self, run_id: str, faults: Sequence[str]) -> str:
        where = self._files[run_id].relative_to(self.home)
        return f"{where}: {len(faults)} unreadable line(s) left out: {', '.join(faults)}."

    def _digest(self, run_id: str) -> pa.Table:
        return digest_of(self._whole(run_id).table)

    def _faults(self, run_id: str) -> pa.Table:
        return pa.table({"faults": pa.array([list(self._whole(run_id).faults)], pa.list_(pa.string()))})

    def _long(self, run_id: str, columns: Sequence[str] | None) -> pd.DataFrame:
        if not self._states[run_id]:
            return _EMPTY
        table = self._whole(run_id, columns).table
        steps = table[_STEP].to_numpy()
        parts: list[pd.DataFrame] = []
        for name in (n for n in table.column_names if n != _STEP):
            logged = table[name].is_valid().to_numpy()
            values = {"step": steps[logged], "name": name, "value": table[name].to_numpy()[logged]}
            parts.append(pd.DataFrame({"run_id": run_id, **values}))
        return pd.concat(parts, ignore_index=True) if parts else _EMPTY

    def _whole(self, run_id: str, columns: Sequence[str] | None = None) -> Journal:
        """From the cache, else from its lines; then it is kept."""
        path = layout.analysis_cache(self.home) / "journals" / f"{run_id}.parquet"
        table, read_from = cache.read(path, columns)
        if table is not None and read_from.get(run_id) == self._states[run_id]:
            faults = (table.schema.metadata or {}).get(b"faults", b"")
            return Journal(table, tuple(faults.decode().split("\n")) if faults else ())
        found = read(self._files[run_id])
        kept = found.table.replace_schema_metadata({b"faults": "\n".join(found.faults).encode()})
        cache.write(kept, path, {run_id: self._states[run_id]})
        if columns is None:
            return found
        return Journal(found.table.select([c for c in columns if c in found.table.column_names]), found.faults)


def drawable(rows: pa.Table) -> pd.DataFrame:
    """run_id, step, name, value of thinned curves, by run, metric and step."""
    if not rows.num_rows:
        return _EMPTY
    frame = rows.select(["run_id", "step", "name", "value"]).to_pandas()
    frame = frame.astype({"run_id": "category", "name": "category", "value": float})
    return frame.sort_values(["run_id", "name", "step"], kind="stable", ignore_index=True)


_EMPTY = pd.DataFrame({"run_id": pd.Series(dtype=str), "step": pd.Series(dtype=int)}).assign(
    name=pd.Series(dtype=str), value=pd.Series(dtype=float)
)


class Logged:
    """Those that a tracking server gave. frame: run_id, step, name, value."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def digest(self) -> pd.DataFrame:
        parts: list[pd.DataFrame] = []
        for run_id, own in self._frame.groupby("run_id"):
            parts.append(digest_of(_wide(own)).to_pandas().assign(run_id=str(run_id)))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", *DIGEST])

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        return self._frame if names is None else self._frame[self._frame["name"].isin(list(names))]

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        parts: list[pa.Table] = []
        for run_id, own in self._frame.groupby("run_id"):
            part = thinned(_wide(own), names)
            parts.append(part.add_column(0, "run_id", pa.array([str(run_id)] * part.num_rows, pa.string())))
        return drawable(pa.concat_tables(parts).unify_dictionaries()) if parts else _EMPTY

    def notes(self) -> list[str]:
        return []


def _wide(own: pd.DataFrame) -> pa.Table:
    """One run's rows as its journal would have them."""
    wide = own.pivot(index="step", columns="name", values="value").sort_index()
    return pa.table({_STEP: wide.index.to_numpy(), **{str(n): _nulls(wide[n]) for n in wide.columns}})


def _nulls(column: pd.Series[float]) -> pa.Array:
    return pa.array(column.to_numpy(float), from_pandas=True)


def read(file: Path) -> Journal:
    """The first record of a step counts. What is damaged or torn is left out and named."""
    lines = file.read_bytes().split(b"\n")
    whole = lines.pop() == b"" and not any(map(journal.fault_of, lines))
    found = _columns(lines) if whole and lines else None
    faults: tuple[str, ...] = ()
    if found is None:
        reading = journal.read(file)
        faults = (*map(str, reading.damaged), *(["the last one is torn"] if reading.torn else []))
        found = _records(reading.records)
    steps = found[_STEP].to_numpy()
    _, first = np.unique(steps, return_index=True)
    return Journal(found if np.array_equal(first, np.arange(len(steps))) else found.take(first), faults)


def _columns(lines: Sequence[bytes]) -> pa.Table | None:
    """By Arrow's parser, three times as fast as Python's; None where a value is not finite, and so is text."""
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
    return pa.table({_STEP: table[_STEP].cast(pa.int64()), **{k: c.cast(pa.float64()) for k, c in columns.items()}})


def _records(records: Sequence[journal.Record]) -> pa.Table:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    columns = {name: pa.array([r.metrics.get(name) for r in records], pa.float64()) for name in names}
    return pa.table({_STEP: pa.array([r.step for r in records], pa.int64()), **columns})
