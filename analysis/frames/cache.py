"""A cache of parsed files, in Parquet, under `reports/.cache/` of the home. Deleting it is safe; where it cannot be
written, files are parsed each time.

One file per kind of table holds the rows of all runs and, for each run, the state of its files when they were read. A
run whose files have changed since is read again, and the new file replaces the old one atomically.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.frames.tables import TEXT, decoded, of_run
from rlvr.ledger import layout
from rlvr.ledger.files import make_private, write_atomically

FORMAT = "4"  # raise it when the content of the cache, or the way in which it is computed, changes
THREADS = 2  # Arrow parses outside Python's lock
_FORMAT, _READ_FROM = b"rlvr.format", b"rlvr.read_from"


def state_of(files: Iterable[Path]) -> str:
    """The names, sizes and modification times of these files, by which a change is seen; "" if none can be read."""
    states: list[str] = []
    for file in files:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            stat = file.stat()
            states.append(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return "|".join(states)


def rows(home: Path, kind: str, states: Mapping[str, str], parse: Callable[[str], pa.Table]) -> pa.Table:
    """The rows of runs, with a first column run_id; `parse` gives those of a run that are not cached.

    states: by run, the state (`state_of`) of the files that `parse` reads; a run with state "" has no rows.
    """
    path = layout.analysis_cache(home) / f"{kind}.parquet"
    known, read_from = _read(path)
    wanted = [run_id for run_id, state in states.items() if state]
    stale = [run_id for run_id in wanted if read_from.get(run_id) != states[run_id]]
    if stale:
        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(map(of_run, stale, pool.map(parse, stale)))
        read_from = {run_id: state for run_id, state in read_from.items() if run_id not in set(stale)}
        older = [] if known is None else [_rows_of(known, list(read_from))]
        known = pa.concat_tables([*older, *parts], promote_options="default").unify_dictionaries()
        _write(known, path, read_from | {run_id: states[run_id] for run_id in stale})
    return pa.table({"run_id": pa.array([], TEXT)}) if known is None else _rows_of(known, wanted)


def _rows_of(table: pa.Table, run_ids: Sequence[str]) -> pa.Table:
    codes, names = decoded(table, "run_id")
    wanted = np.isin(np.array(names), list(run_ids)) if names else np.zeros(0, bool)
    return table if wanted.all() else table.filter(pa.array(wanted[codes]))


def _read(path: Path) -> tuple[pa.Table | None, dict[str, str]]:
    """(table, by run the state of the files that it was read from); (None, {}) if there is no table of this format."""
    try:
        table = pq.read_table(path, use_threads=False)
        metadata = table.schema.metadata or {}
        if metadata.get(_FORMAT) == FORMAT.encode():
            return table, json.loads(metadata[_READ_FROM])
    except (OSError, pa.ArrowInvalid):  # missing, or cut short by a full disk
        pass
    return None, {}


def _write(table: pa.Table, path: Path, read_from: Mapping[str, str]) -> None:
    """Write a table to the cache. A failure to write is ignored: the next report parses the files again."""
    metadata = {_FORMAT: FORMAT, _READ_FROM: json.dumps(dict(read_from))}
    with contextlib.suppress(OSError):
        make_private(path.parent)
        with write_atomically(path, durable=False) as aside:
            pq.write_table(table.replace_schema_metadata(metadata), aside, compression="zstd", write_statistics=False)
