"""What was parsed before, in Parquet: `reports/.cache/` of the home. Safe to delete; none where it cannot be written.

One table per kind holds the rows of all runs, and the state of its files from which each run was read. A run whose
files have changed since is read again, and the table is put in the place of the old one in one step.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger import layout
from rlvr.ledger.files import whole

S = TypeVar("S")
T = TypeVar("T")

FORMAT = "3"  # raise it when what is written, or what it is computed from, changes
THREADS = 2  # Arrow parses and writes outside Python's lock
MANY = 24  # runs that are worth two processes
_FORMAT, _READ_FROM = b"rlvr.format", b"rlvr.read_from"


def state_of(files: Iterable[Path]) -> str:
    """What tells one state of these files from another: names, sizes, times of change. "" if none is there."""
    seen: list[str] = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            found = file.stat()
            seen.append(f"{file.name}:{found.st_size}:{found.st_mtime_ns}")
    return "|".join(seen)


def rows(
    home: Path, kind: str, states: Mapping[str, str], parse: Callable[[Sequence[str]], Sequence[pa.Table]]
) -> pa.Table:
    """The rows of runs, by `parse` where they are not known, in the order of runs; column run_id is put before them.

    parse: a table for each of these runs. states: by run, of the files that `parse` reads; a run with state "" has no
    rows.
    """
    path = layout.analysis_cache(home) / f"{kind}.parquet"
    known, read_from = read(path)
    wanted = [run_id for run_id, state in states.items() if state]
    fresh = [i for i in wanted if read_from.get(i) != states[i]]
    if fresh or known is None:
        parts = [_named(i, part) for i, part in zip(fresh, parse(fresh), strict=True)]
        read_from = {i: state for i, state in read_from.items() if i not in set(fresh)}
        older = [] if known is None else [_of(known, list(read_from))]
        known = pa.concat_tables([*older, *parts], promote_options="default").unify_dictionaries() if parts else known
        if known is not None:
            write(known, path, read_from | {i: states[i] for i in fresh})
    return pa.table({"run_id": pa.array([], pa.string())}) if known is None else _of(known, wanted)


def in_processes(parse: Callable[[S], T], sources: Sequence[S]) -> list[T]:
    """As a map, for what Python itself must do; here where there is little of it, or no safe fork."""
    if len(sources) < MANY or sys.platform != "linux":
        return [parse(source) for source in sources]
    with multiprocessing.get_context("fork").Pool(THREADS) as pool:
        return pool.map(parse, sources, chunksize=8)


def in_threads(parse: Callable[[str], T], run_ids: Sequence[str]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(parse, run_ids))


def _named(run_id: str, part: pa.Table) -> pa.Table:
    codes = pa.array([0] * part.num_rows, pa.int32())
    return part.add_column(0, "run_id", pa.DictionaryArray.from_arrays(codes, pa.array([run_id])))


def _of(table: pa.Table, run_ids: Sequence[str]) -> pa.Table:
    """The rows of these runs alone."""
    codes, names = decoded(table, "run_id")
    wanted = np.isin(np.array(names), list(run_ids)) if names else np.zeros(0, bool)
    return table if wanted.all() else table.filter(pa.array(wanted[codes]))


def decoded(table: pa.Table, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, what codes stand for) of a column of text."""
    column = table[name].combine_chunks()
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary.to_pylist()


def read(path: Path, columns: Sequence[str] | None = None) -> tuple[pa.Table | None, dict[str, str]]:
    """(table, state of its files that each run was read from); (None, {}) where there is none of this version."""
    try:
        file = pq.ParquetFile(path)
        noted = file.schema_arrow.metadata or {}
        if noted.get(_FORMAT) != FORMAT.encode():
            return None, {}
        present = None if columns is None else [c for c in columns if c in file.schema_arrow.names]
        return file.read(present, use_threads=False), json.loads(noted[_READ_FROM])
    except (OSError, pa.ArrowInvalid):  # not there, or cut short by a full disk
        return None, {}


def write(table: pa.Table, path: Path, read_from: Mapping[str, str]) -> None:
    """Keeps it if it can: a cache that cannot be written is none."""
    noted = {_FORMAT: FORMAT.encode(), _READ_FROM: json.dumps(dict(read_from)).encode()}
    noted |= {k: v for k, v in (table.schema.metadata or {}).items() if k not in noted}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path, durable=False) as aside:
            pq.write_table(table.replace_schema_metadata(noted), aside, compression="zstd", write_statistics=False)
