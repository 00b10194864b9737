"""What runs logged, as columns: a run's whole journal for figures, and a digest of all runs' for tables.

A table asks for few numbers of each run, all of them at its evaluations: what was logged there, the mean of a metric
of training over the steps before, the sum of times and tokens until then. The digest holds these alone. Both are kept
in the cache (analysis/frames/cache.py).
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
from analysis.frames.thin import KEPT, thinned
from rlvr.ledger import journal, layout

_STEP = "step"


class Curves(Protocol):
    """What runs logged, wherever it is kept."""

    @property
    def states(self) -> Mapping[str, str]:
        """By run, what tells one state of its file from another (frames/cache.py); {} where there is none."""
        ...

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
        self._derived: dict[str, _Derived] = {}
        self._states = {i: cache.state_of([file]) for i, file in files.items()}

    @property
    def states(self) -> dict[str, str]:
        """Of the file of each run (frames/cache.py)."""
        return self._states

    def digest(self) -> pd.DataFrame:
        """run_id, what, name, step, value: as `digest_of` has it."""
        found = cache.rows(self.home, "digest", self._states, lambda ids: [self._read(i).digest for i in ids])
        return found.to_pandas() if found.num_rows else pd.DataFrame(columns=["run_id", *DIGEST])

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of training's metrics, or of these, as `thinned` has them."""
        if names is not None and set(names) <= set(KEPT):
            rows = cache.rows(self.home, "curves", self._states, lambda ids: [self._read(i).curves for i in ids])
            frame = drawable(rows)
            return frame[frame["name"].isin(list(names))].reset_index(drop=True)
        every = cache.rows(
            self.home, "every-curve", self._states, lambda ids: [thinned(self._whole(i).table) for i in ids]
        )
        frame = drawable(every)
        return frame if names is None else frame[frame["name"].isin(list(names))].reset_index(drop=True)

    def notes(self) -> list[str]:
        """Lines that cannot be read, by run."""
        self._read_many()
        found = cache.rows(self.home, "faults", self._states, lambda ids: [self._read(i).faults for i in ids])
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

    def _read(self, run_id: str) -> _Derived:
        """What tables and figures need of a journal, which is parsed once for all of it."""
        if run_id not in self._derived:
            self._derived[run_id] = _derive(self._files[run_id])
        return self._derived[run_id]

    def _read_many(self) -> None:
        """Parse what has changed since the last time, on two cores. Before threads are at work: it forks."""
        _, known = cache.read(layout.analysis_cache(self.home) / "faults.parquet", ["run_id"])
        stale = [i for i, state in self._states.items() if state and known.get(i) != state and i not in self._derived]
        self._derived.update(zip(stale, cache.in_processes(_derive, [self._files[i] for i in stale]), strict=True))

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

    def _cached(self, run_id: str, columns: Sequence[str] | None = None) -> Journal | None:
        table, read_from = cache.read(self._kept(run_id), columns)
        if table is None or read_from.get(run_id) != self._states[run_id]:
            return None
        faults = (table.schema.metadata or {}).get(b"faults", b"")
        return Journal(table, tuple(faults.decode().split("\n")) if faults else ())

    def _kept(self, run_id: str) -> Path:
        return layout.analysis_cache(self.home) / "journals" / f"{run_id}.parquet"

    def _whole(self, run_id: str, columns: Sequence[str] | None = None) -> Journal:
        """From the cache, else from its lines; then it is kept."""
        if (known := self._cached(run_id, columns)) is not None:
            return known
        found = read(self._files[run_id])
        kept = found.table.replace_schema_metadata({b"faults": "\n".join(found.faults).encode()})
        cache.write(kept, self._kept(run_id), {run_id: self._states[run_id]})
        if columns is None:
            return found
        return Journal(found.table.select([c for c in columns if c in found.table.column_names]), found.faults)


@dataclass(frozen=True)
class _Derived:
    """Of one journal: the tables of `digest`, of `thin` and of `notes`."""

    digest: pa.Table
    curves: pa.Table
    faults: pa.Table


def _derive(file: Path) -> _Derived:
    found = read(file)
    faults = pa.table({"faults": pa.array([list(found.faults)], pa.list_(pa.string()))})
    return _Derived(digest_of(found.table), thinned(found.table, KEPT), faults)


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

    states: Mapping[str, str] = MappingProxyType({})

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
