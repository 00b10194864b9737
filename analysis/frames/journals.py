"""The metrics that runs logged, as columns: a run's complete journal for figures, and a digest of all runs for tables.

A table needs few numbers of each run, all of them at its evaluations: what was logged there, the mean of a metric of
training over the steps before, the sum of times and tokens until then. The digest holds only these. Journals and digest
are kept in the cache (analysis/frames/cache.py).
"""

from __future__ import annotations

import functools
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json as pj

from analysis.frames import cache
from analysis.frames.digest import DIGEST, digest_of
from analysis.frames.thin import CACHED_METRICS, thinned
from rlvr.ledger import journal, layout

_STEP = "step"


class Curves(Protocol):
    """The metrics that runs logged, whatever their source."""

    @property
    def states(self) -> Mapping[str, str]:
        """By run, the state of its file (frames/cache.py); {} for a source without files."""
        ...

    def digest(self) -> pd.DataFrame:
        """run_id, and what, name, step, value as in `digest_of`."""
        ...

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of all metrics, or of these, sorted."""
        ...

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of all metrics of training, or of these, as in `thinned`."""
        ...

    def notes(self) -> list[str]:
        """A line for each run on what could not be read."""
        ...


@dataclass(frozen=True)
class Journal:
    """One run's journal.

    table: `step`, ascending, and a column per metric (null: not logged). faults: lines that are left out.
    """

    table: pa.Table
    faults: tuple[str, ...] = ()


class Journals:
    """The journals of runs of a home."""

    def __init__(self, home: Path, run_ids: Sequence[str]) -> None:
        self.home, self.run_ids = home, list(run_ids)
        files = {i: layout.journal(layout.run(home, i)) for i in self.run_ids}
        self._files = files
        self._derived: dict[str, _Derived] = {}
        self._states = {i: cache.state_of([file]) for i, file in files.items()}

    @property
    def states(self) -> dict[str, str]:
        """See Curves, like the other public methods."""
        return self._states

    def digest(self) -> pd.DataFrame:
        return self._digest

    @functools.cached_property
    def _digest(self) -> pd.DataFrame:
        self._derive_stale()
        rows = cache.rows(self.home, "digest", self._states, lambda ids: [self._derive(i).digest for i in ids])
        return rows.to_pandas() if rows.num_rows else pd.DataFrame(columns=["run_id", *DIGEST])

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        if names is not None and set(names) <= set(CACHED_METRICS):
            rows = cache.rows(self.home, "curves", self._states, lambda ids: [self._derive(i).curves for i in ids])
        else:
            rows = cache.rows(
                self.home, "every-curve", self._states, lambda ids: [thinned(self._journal(i).table) for i in ids]
            )
        frame = drawable(rows)
        return frame if names is None else frame[frame["name"].isin(list(names))].reset_index(drop=True)

    def notes(self) -> list[str]:
        self._derive_stale()
        rows = cache.rows(self.home, "faults", self._states, lambda ids: [self._derive(i).faults for i in ids])
        pairs = zip(rows["run_id"].to_pylist(), rows["faults"].to_pylist(), strict=True) if rows.num_rows else ()
        return [self._note(run_id, faults) for run_id, faults in pairs if faults]

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        columns = None if names is None else [_STEP, *sorted(names)]
        parts = cache.in_threads(functools.partial(self._long, columns=columns), self.run_ids)
        frame = pd.concat([_EMPTY, *parts], ignore_index=True) if any(map(len, parts)) else _EMPTY
        return frame.sort_values(["run_id", "name", "step"], ignore_index=True)

    def _note(self, run_id: str, faults: Sequence[str]) -> str:
        file = self._files[run_id].relative_to(self.home)
        return f"{file}: {len(faults)} unreadable line(s) left out: {', '.join(faults)}."

    def _derive(self, run_id: str) -> _Derived:
        """The derived tables of a journal, which is parsed once for all of them."""
        if run_id not in self._derived:
            self._derived[run_id] = _derive(self._files[run_id])
        return self._derived[run_id]

    def _derive_stale(self) -> None:
        """Parse the journals that have changed since they were cached."""
        _, known = cache.read(layout.analysis_cache(self.home) / "faults.parquet", ["run_id"])
        stale = [i for i, state in self._states.items() if state and known.get(i) != state and i not in self._derived]
        self._derived.update(zip(stale, cache.in_threads(_derive, [self._files[i] for i in stale]), strict=True))

    def _long(self, run_id: str, columns: Sequence[str] | None) -> pd.DataFrame:
        if not self._states[run_id]:
            return _EMPTY
        table = self._journal(run_id, columns).table
        steps = table[_STEP].to_numpy()
        parts: list[pd.DataFrame] = []
        for name in (n for n in table.column_names if n != _STEP):
            logged = table[name].is_valid().to_numpy()
            values = {"step": steps[logged], "name": name, "value": table[name].to_numpy()[logged]}
            parts.append(pd.DataFrame({"run_id": run_id, **values}))
        return pd.concat(parts, ignore_index=True) if parts else _EMPTY

    def _cached(self, run_id: str, columns: Sequence[str] | None = None) -> Journal | None:
        table, read_from = cache.read(self._cache_file(run_id), columns)
        if table is None or read_from.get(run_id) != self._states[run_id]:
            return None
        faults = (table.schema.metadata or {}).get(b"faults", b"")
        return Journal(table, tuple(faults.decode().split("\n")) if faults else ())

    def _cache_file(self, run_id: str) -> Path:
        return layout.analysis_cache(self.home) / "journals" / f"{run_id}.parquet"

    def _journal(self, run_id: str, columns: Sequence[str] | None = None) -> Journal:
        """A run's journal, all columns or these: from the cache, else from its file, and then cached."""
        if (cached := self._cached(run_id, columns)) is not None:
            return cached
        parsed = read(self._files[run_id])
        with_faults = parsed.table.replace_schema_metadata({b"faults": "\n".join(parsed.faults).encode()})
        cache.write(with_faults, self._cache_file(run_id), {run_id: self._states[run_id]})
        if columns is None:
            return parsed
        return Journal(parsed.table.select([c for c in columns if c in parsed.table.column_names]), parsed.faults)


@dataclass(frozen=True)
class _Derived:
    """What `digest`, `thin` and `notes` need of one journal."""

    digest: pa.Table
    curves: pa.Table
    faults: pa.Table


def _derive(file: Path) -> _Derived:
    parsed = read(file)
    faults = pa.table({"faults": pa.array([list(parsed.faults)], pa.list_(pa.string()))})
    return _Derived(digest_of(parsed.table), thinned(parsed.table, CACHED_METRICS), faults)


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
    """The metrics read from a tracking server, as Curves. frame: run_id, step, name, value."""

    states: Mapping[str, str] = MappingProxyType({})

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def digest(self) -> pd.DataFrame:
        parts: list[pd.DataFrame] = []
        for run_id, rows in self._frame.groupby("run_id"):
            parts.append(digest_of(_wide(rows)).to_pandas().assign(run_id=str(run_id)))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", *DIGEST])

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        return self._frame if names is None else self._frame[self._frame["name"].isin(list(names))]

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        parts: list[pa.Table] = []
        for run_id, rows in self._frame.groupby("run_id"):
            part = thinned(_wide(rows), names)
            parts.append(part.add_column(0, "run_id", pa.array([str(run_id)] * part.num_rows, pa.string())))
        return drawable(pa.concat_tables(parts).unify_dictionaries()) if parts else _EMPTY

    def notes(self) -> list[str]:
        return []


def _wide(rows: pd.DataFrame) -> pa.Table:
    """One run's rows as the table of a journal."""
    wide = rows.pivot(index="step", columns="name", values="value").sort_index()
    return pa.table({_STEP: wide.index.to_numpy(), **{str(n): _nulls(wide[n]) for n in wide.columns}})


def _nulls(column: pd.Series[float]) -> pa.Array:
    return pa.array(column.to_numpy(float), from_pandas=True)


def read(file: Path) -> Journal:
    """Parse a journal file. The first record of a step counts; damaged and torn lines are left out and listed."""
    lines = file.read_bytes().split(b"\n")
    intact = lines.pop() == b"" and not any(map(journal.fault_of, lines))
    table = _columns(lines) if intact and lines else None
    faults: tuple[str, ...] = ()
    if table is None:
        reading = journal.read(file)
        faults = (*map(str, reading.damaged), *(["the last one is torn"] if reading.torn else []))
        table = _records(reading.records)
    steps = table[_STEP].to_numpy()
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
    return pa.table({_STEP: table[_STEP].cast(pa.int64()), **{k: c.cast(pa.float64()) for k, c in columns.items()}})


def _records(records: Sequence[journal.Record]) -> pa.Table:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    columns = {name: pa.array([r.metrics.get(name) for r in records], pa.float64()) for name in names}
    return pa.table({_STEP: pa.array([r.step for r in records], pa.int64()), **columns})
