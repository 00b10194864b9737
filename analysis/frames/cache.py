"""A cache of parsed files, in Parquet, under `reports/.cache/` of the home. Deleting it is safe; where it cannot be
written, files are parsed each time.

One table per kind holds the rows of all runs and, for each run, the state of its files when they were read. A run whose
files have changed since is read again, and the new table replaces the old one atomically.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger import layout
from rlvr.ledger.files import write_atomically

S = TypeVar("S")
T = TypeVar("T")

FORMAT = "3"  # raise it when the content of the cache, or the way in which it is computed, changes
THREADS = 2  # Arrow parses and writes outside Python's lock
_FORMAT, _READ_FROM = b"rlvr.format", b"rlvr.read_from"


def state_of(files: Iterable[Path]) -> str:
    """The names, sizes and modification times of these files, by which a change is seen; "" if none exists."""
    states: list[str] = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            states.append(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return "|".join(states)


def rows(
    home: Path, kind: str, states: Mapping[str, str], parse: Callable[[Sequence[str]], Sequence[pa.Table]]
) -> pa.Table:
    """The rows of runs, in the order of runs, with a first column run_id; `parse` gives those that are not cached.

    parse: returns a table for each of the runs that it gets. states: by run, the state (`state_of`) of the files that
    `parse` reads; a run with state "" has no rows.
    """
    path = layout.analysis_cache(home) / f"{kind}.parquet"
    known, read_from = read(path)
    wanted = [run_id for run_id, state in states.items() if state]
    fresh = [i for i in wanted if read_from.get(i) != states[i]]
    if fresh or known is None:
        parts = [_with_run_id(i, part) for i, part in zip(fresh, parse(fresh), strict=True)]
        read_from = {i: state for i, state in read_from.items() if i not in set(fresh)}
        older = [] if known is None else [_rows_of(known, list(read_from))]
        known = pa.concat_tables([*older, *parts], promote_options="default").unify_dictionaries() if parts else known
        if known is not None:
            write(known, path, read_from | {i: states[i] for i in fresh})
    return pa.table({"run_id": pa.array([], pa.string())}) if known is None else _rows_of(known, wanted)


def in_threads(parse: Callable[[S], T], sources: Sequence[S]) -> list[T]:
    """`parse` of each source."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(parse, sources))


def _with_run_id(run_id: str, part: pa.Table) -> pa.Table:
    codes = pa.array([0] * part.num_rows, pa.int32())
    return part.add_column(0, "run_id", pa.DictionaryArray.from_arrays(codes, pa.array([run_id])))


def _rows_of(table: pa.Table, run_ids: Sequence[str]) -> pa.Table:
    codes, names = decoded(table, "run_id")
    wanted = np.isin(np.array(names), list(run_ids)) if names else np.zeros(0, bool)
    return table if wanted.all() else table.filter(pa.array(wanted[codes]))


def decoded(table: pa.Table, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, text of each code) of a column of text."""
    column = table[name].combine_chunks()
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary.to_pylist()


def read(path: Path, columns: Sequence[str] | None = None) -> tuple[pa.Table | None, dict[str, str]]:
    """(table, by run the state of the files that it was read from); (None, {}) if there is no table of this format."""
    try:
        file = pq.ParquetFile(path)
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(_FORMAT) != FORMAT.encode():
            return None, {}
        present = None if columns is None else [c for c in columns if c in file.schema_arrow.names]
        return file.read(present, use_threads=False), json.loads(metadata[_READ_FROM])
    except (OSError, pa.ArrowInvalid):  # missing, or cut short by a full disk
        return None, {}


def write(table: pa.Table, path: Path, read_from: Mapping[str, str]) -> None:
    """Write a table to the cache. A failure to write is ignored: the next report parses the files again."""
    metadata = {_FORMAT: FORMAT.encode(), _READ_FROM: json.dumps(dict(read_from)).encode()}
    metadata |= {k: v for k, v in (table.schema.metadata or {}).items() if k not in metadata}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path, durable=False) as aside:
            pq.write_table(table.replace_schema_metadata(metadata), aside, compression="zstd", write_statistics=False)
