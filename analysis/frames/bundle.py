"""A study in one file, a bundle: all the data that its tables, figures and page are made from, without the runs.

A bundle is a zip archive that is never unpacked to disk: `about.json` (the study, its sweeps and claims), `runs.json`
(the frame `runs`: where each run comes from, its config, its state) and Parquet tables:

| member | a row | columns |
|---|---|---|
| counts | a problem in an evaluation | run_id, step, source, problem_id, n, correct, errors |
| digest | a number that tables read | run_id, what, name, step, value (frames/digest.py) |
| drawn | a point of a curve | run_id, name, step, value (frames/thin.py) |
| history | the same without thinning, for the few metrics that need it | run_id, name, step, value |
| texts | the value of a metric of texts for a problem's responses | summary, run_id, step, source, key, value |
| responses | a sample that the page shows | run_id, step, and the fields of Response (frames/samples.py) |
| policy | an arm of a bandit's last policy | run_id, step, arm, reward, probability, probability_old, advantage |

There are no weights, and only the texts that the page shows. The same runs give the same bytes. A bundle may come from
an untrusted source: members are read by their names into memory, within limits; nothing is unpickled or executed, no
path in it is written to, and control characters in its texts are replaced (those of prompts and responses, which only
the page shows, are kept).
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.frames.cache import decoded
from analysis.frames.counts import Counts
from analysis.frames.digest import DIGEST
from analysis.frames.frames import DRAWN, HISTORY, OF_TEXTS, RESPONSES, Frames
from analysis.frames.run import check_seeds
from analysis.frames.runs import COLUMNS, without_secret
from analysis.frames.samples import POLICY, Response, Texts
from rlvr.ledger import layout
from rlvr.ledger.files import write_atomically
from rlvr.ledger.sweeps import Sweep
from rlvr.ledger.tags import redact
from rlvr.ledger.terminal import printable

FORMAT = 1
SUFFIX = layout.BUNDLE
MOST_BYTES, MOST_ROWS = 1 << 30, 50_000_000  # of all members together, unpacked, and of a table's texts; of a table
# Keys of sweep.json that describe the machine that launched it.
_OF_THE_MACHINE = ("config_dirs", "import_paths", "home", "cwd", "python", "tracker")
_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int64(), pa.float64()
SCHEMAS = {
    "counts": {
        **{"run_id": _TEXT, "step": _WHOLE, "source": _TEXT, "problem_id": _TEXT},
        **{"n": pa.int32(), "correct": pa.int32(), "errors": pa.int32()},
    },
    "digest": {"run_id": _TEXT, "what": _TEXT, "name": _TEXT, "step": _WHOLE, "value": _NUMBER},
    "drawn": {"run_id": _TEXT, "name": _TEXT, "step": _WHOLE, "value": pa.float32()},
    "history": {"run_id": _TEXT, "name": _TEXT, "step": _WHOLE, "value": _NUMBER},
    "texts": {**{"summary": _TEXT, "run_id": _TEXT, "step": _WHOLE, "source": _TEXT, "key": _TEXT, "value": _NUMBER}},
    "responses": {
        **{"run_id": _TEXT, "step": _WHOLE, "source": _TEXT, "problem_id": _TEXT, "prompt": _TEXT, "sample": _WHOLE},
        **{"response": _TEXT, "outcome": _TEXT, "num_tokens": _WHOLE},
    },
    "policy": {"run_id": _TEXT, "step": _WHOLE, "arm": _WHOLE, **dict.fromkeys(POLICY[1:], _NUMBER)},
}
_NOT_TUNING = "Knobs were tuned: the runs that chose their values are not in this bundle."
_SHOWN_ON_THE_PAGE = ("prompt", "response")  # and nowhere else


# --- writing


def write(frames: Frames, file: Path) -> None:
    """Write these frames to a bundle. Build a report from them first: only the data that it has read is written."""
    tables = _tables(frames)
    about = {
        "format": FORMAT,
        **{name: getattr(frames, name) for name in ("study", "question", "title", "origin")},
        "commands": list(frames.commands),
        "notes": [*frames.notes, *([_NOT_TUNING] if frames.tuned is not None else [])],
        "sweeps": [_sweep_to_json(sweep) for sweep in frames.sweeps],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(file, durable=False) as aside, zipfile.ZipFile(aside, "w") as archive:
        _put(archive, "about.json", _json(about))
        _put(archive, "runs.json", _json(_runs_to_json(frames.runs)))
        for name, schema in SCHEMAS.items():
            if name in tables and tables[name].num_rows:
                out = io.BytesIO()
                table = tables[name].select(list(schema)).cast(pa.schema(list(schema.items())))
                pq.write_table(table.replace_schema_metadata(None), out, compression="zstd", compression_level=9)
                _put(archive, f"{name}.parquet", out.getvalue())


def _sweep_to_json(sweep: Sweep) -> dict[str, Any]:
    """A sweep as plain data, without what describes the machine that launched it and without passwords."""
    info = {key: value for key, value in sweep.info.items() if key not in _OF_THE_MACHINE}
    runs = [{**run, "overrides": list(map(without_secret, run.get("overrides", ())))} for run in sweep.runs]
    return {"sweep_id": sweep.sweep_id, "info": info | {"command": redact(sweep.command)}, "runs": runs}


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add a member with a fixed time, so that the same content has the same bytes."""
    member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _tables(frames: Frames) -> dict[str, pa.Table]:
    cached: dict[str, dict[tuple[Any, ...], Any]] = {name: {} for name in (HISTORY, DRAWN, OF_TEXTS, RESPONSES)}
    for key, value in frames.cache.items():
        if isinstance(key, tuple) and key[0] in cached:
            cached[key[0]][key[1:]] = value
    return {
        "counts": _by_run(frames.judgements.table),
        "digest": _by_run(_arrow(frames.curves.digest(), SCHEMAS["digest"])),
        "drawn": _curves(cached[DRAWN].values(), SCHEMAS["drawn"]),
        "history": _curves(cached[HISTORY].values(), SCHEMAS["history"]),
        "texts": _rows(
            "texts",
            (
                {
                    "summary": summary,
                    "run_id": run_id,
                    "step": step,
                    "source": source,
                    "key": key,
                    "value": float(value),
                }
                for (summary, run_id, step, source), values in sorted(cached[OF_TEXTS].items())
                for key, value in values.items()
            ),
        ),
        "responses": _rows(
            "responses",
            (
                {"run_id": run_id, "step": step, **response.__dict__}
                for (run_id, step, _), responses in sorted(cached[RESPONSES].items())
                for response in responses
            ),
        ),
        "policy": _arrow(frames.policy, SCHEMAS["policy"]),
    }


def _rows(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema(list(SCHEMAS[name].items())))


def _curves(frames: Iterable[pd.DataFrame], schema: Mapping[str, pa.DataType]) -> pa.Table:
    """The points of cached curves, each point distinct, by run, metric and step."""
    parts = [frame.astype({"run_id": str, "name": str}) for frame in frames if len(frame)]
    all_points = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(schema))
    distinct = all_points.drop_duplicates(["run_id", "name", "step"])
    return _arrow(distinct.sort_values(["run_id", "name", "step"], ignore_index=True), schema)


def _arrow(frame: pd.DataFrame, schema: Mapping[str, pa.DataType]) -> pa.Table:
    columns = {name: pa.array(frame[name].to_numpy(), from_pandas=False).cast(kind) for name, kind in schema.items()}
    return pa.table(columns) if len(frame) else pa.schema(list(schema.items())).empty_table()


def _by_run(table: pa.Table) -> pa.Table:
    """The rows by run id; within a run their order stays. The cache has runs in the order in which it read them."""
    if not table.num_rows:
        return table
    codes, names = decoded(table, "run_id")
    rank = np.argsort(np.argsort(names))
    return table.take(pa.array(np.argsort(rank[codes], kind="stable")))


def _runs_to_json(runs: pd.DataFrame) -> dict[str, Any]:
    """By column its dtype and values; an unknown value (NaN) is null."""
    columns: dict[str, Any] = {}
    for name in runs.columns:
        values = [None if _unknown(v) else v for v in runs[name].tolist()]
        columns[str(name)] = {"dtype": str(runs[name].dtype), "values": values}
    return columns


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and np.isnan(value)


# --- reading


@dataclass(frozen=True)
class Packed:
    """The tables of a bundle, with columns as in SCHEMAS: its `Curves` and `Stored`, in place of the files of runs."""

    tables: Mapping[str, pa.Table]
    faults: tuple[str, ...] = ()

    @property
    def states(self) -> Mapping[str, str]:
        """Empty: a bundle has no run directories."""
        return {}

    def digest(self) -> pd.DataFrame:
        """See Curves, also for `long`, `thin` and `notes`."""
        return self._frame("digest", ["run_id", *DIGEST])

    def long(self, names: Collection[str] | None = None) -> pd.DataFrame:
        history = self._frame("history", ["run_id", "step", "name", "value"])
        if names is None:
            thin = self._frame("drawn", ["run_id", "step", "name", "value"])
            history = pd.concat([history, thin]).drop_duplicates(["run_id", "name", "step"])
        else:
            history = history[history["name"].isin(list(names))]
        return history.sort_values(["run_id", "name", "step"], ignore_index=True)

    def thin(self, names: Collection[str] | None = None) -> pd.DataFrame:
        frame = self._frame("drawn", ["run_id", "step", "name", "value"])
        frame = frame if names is None else frame[frame["name"].isin(list(names))]
        return frame.astype({"run_id": "category", "name": "category"}).reset_index(drop=True)

    def notes(self) -> list[str]:
        return list(self.faults)

    def samples(self, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
        """See Stored, also for `policy`, `texts`, `responses`. A bundle holds only the samples that its page shows."""
        wanted, frame = set(run_ids), self.tables["responses"].to_pandas()
        return frame[frame["run_id"].isin(wanted)].reset_index(drop=True)

    def policy(self, run_ids: Sequence[str]) -> pd.DataFrame:
        frame = self._frame("policy", ["run_id", "step", *POLICY])
        return frame[frame["run_id"].isin(list(run_ids))].reset_index(drop=True)

    def texts(self, run_id: str, step: int) -> Texts:
        return {}

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        chosen = set(problems)
        rows = [row for row in self.tables["responses"].to_pylist() if (row["run_id"], row["step"]) == (run_id, step)]
        return [
            Response(*(row[field.name] for field in fields(Response)))
            for row in rows
            if (row["source"], row["problem_id"]) in chosen
        ]

    def _frame(self, name: str, columns: list[str]) -> pd.DataFrame:
        frame = self.tables[name].select(columns).to_pandas()
        return frame.astype({"value": float}) if "value" in columns else frame


def read(file: Path) -> Frames:
    """The frames of a bundle. Raises LookupError, with the reason, for a file that is no readable bundle."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive)
            about, runs = (_from_json(members.pop(name)) for name in ("about.json", "runs.json"))
        if about.get("format") != FORMAT:
            raise ValueError(f"its format is {about.get('format')!r}, and this version reads {FORMAT}")
        tables = {name: _table(name, members.get(f"{name}.parquet")) for name in SCHEMAS}
        return _frames(about, _runs_from_json(runs), tables)
    except OSError as error:
        raise LookupError(f"{file}: {error.strerror or error}") from None
    except RecursionError:
        raise LookupError(f"{file} is no bundle that can be read: its description is nested too deeply") from None
    except _UNREADABLE as error:
        raise LookupError(f"{file} is no bundle that can be read: {error}") from None


# RuntimeError: a member is encrypted, or of a later version of zip. OverflowError: a number is too large for a column.
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError, EOFError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, pa.ArrowException),
)


def _members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The content of every member with a known name. Raises ValueError beyond the limits."""
    known = {"about.json", "runs.json", *(f"{name}.parquet" for name in SCHEMAS)}
    infos = [info for info in archive.infolist() if info.filename in known]
    if len(infos) > len(known) or sum(info.file_size for info in infos) > MOST_BYTES:
        raise ValueError(f"it holds more than {MOST_BYTES >> 20} MiB")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise ValueError("it is compressed in another way than bundles are")
    members: dict[str, bytes] = {}
    for info in infos:
        with archive.open(info) as member:
            members[info.filename] = member.read(info.file_size)
    return members


def _table(name: str, data: bytes | None) -> pa.Table:
    schema = pa.schema(list(SCHEMAS[name].items()))
    if data is None:
        return schema.empty_table()
    limits: dict[str, Any] = {"thrift_string_size_limit": 1 << 24, "thrift_container_size_limit": 1 << 20}
    file = pq.ParquetFile(io.BytesIO(data), **limits)
    size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    too_much = ValueError(f"its table {name} holds more than {MOST_ROWS:,} rows or {MOST_BYTES >> 20} MiB")
    if file.metadata.num_rows > MOST_ROWS or size > MOST_BYTES:
        raise too_much
    if not file.schema_arrow.equals(schema):
        raise ValueError(f"its table {name} has other columns than {', '.join(schema.names)}")
    # A few bytes may say that one long text stands in every row: as a dictionary it is in memory once.
    texts = [column for column, kind in SCHEMAS[name].items() if kind == _TEXT]
    table = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts, **limits).read(use_threads=False)
    if sum(map(_text_bytes, table.select(texts).columns)) > MOST_BYTES:
        raise too_much
    for column in texts:
        if column not in _SHOWN_ON_THE_PAGE:
            table = table.set_column(table.schema.get_field_index(column), column, _printable(table[column]))
    return table.cast(schema)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of all texts of a column of dictionaries, once they are no longer dictionaries."""
    compute: Any = pc
    lengths = [compute.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(compute.sum(part.cast(pa.int64())).as_py() or 0 for part in lengths)


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of dictionaries with control characters replaced, because these texts are printed in terminals."""
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, pa.array(_cleaned(chunk.dictionary.to_pylist()), _TEXT))
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, column.type)


def _from_json(data: bytes) -> dict[str, Any]:
    content = _cleaned(json.loads(data))
    if not isinstance(content, dict):
        raise ValueError("its description is no JSON object")
    return cast(dict[str, Any], content)


def _cleaned(content: Any) -> Any:
    """The content with control characters replaced, because these texts are printed in terminals."""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, list):
        return [_cleaned(item) for item in cast(list[Any], content)]
    if isinstance(content, dict):
        return {_cleaned(key): _cleaned(value) for key, value in cast(dict[str, Any], content).items()}
    return content


_DTYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(COLUMNS, ("str",)),
    **dict.fromkeys(("eta", "beta", "seed", "steps", "created"), ("float64", "int64")),
    **dict.fromkeys(("git_dirty", "own_gpus", "reference"), ("bool", "object")),
    "typed": ("object",),
}
_SCALARS = (str, int, float, bool, type(None))


def _runs_from_json(columns: Mapping[str, Any]) -> pd.DataFrame:
    by_name: dict[str, pd.Series[Any]] = {}
    for name, column in columns.items():
        dtype, values = str(column["dtype"]), list(column["values"])
        if dtype not in _DTYPES.get(name, ("str", "float64", "int64", "bool", "object")):
            raise ValueError(f"its column {name} is of type {dtype!r}")
        if dtype == "object" and name != "typed" and not all(isinstance(v, _SCALARS) for v in values):
            raise ValueError(f"its column {name} holds lists or objects")
        if name == "typed":
            values = [tuple(map(str, value)) for value in values]
        by_name[name] = pd.Series(values, dtype=dtype)
    if missing := [name for name in COLUMNS if name not in {*by_name, "own_gpus"}]:  # older bundles lack that one
        raise ValueError(f"its runs have no {', '.join(missing)}")
    if len(set(map(len, by_name.values()))) > 1:
        raise ValueError("the columns of its runs have different numbers of values")
    return pd.DataFrame({"own_gpus": False, **by_name})


def _frames(about: Mapping[str, Any], runs: pd.DataFrame, tables: dict[str, pa.Table]) -> Frames:
    packed = Packed(tables)
    sweeps = [
        Sweep(str(s["sweep_id"]), dict(s["info"]), tuple(dict(run) for run in s["runs"])) for s in about["sweeps"]
    ]
    frames = Frames(
        runs=runs,
        curves=packed,
        judgements=Counts.from_table(tables["counts"]),
        stored=packed,
        study=str(about["study"]),
        question=str(about["question"]),
        title=str(about["title"]),
        origin=str(about["origin"]),
        commands=tuple(map(str, about["commands"])),
        notes=tuple(map(str, about["notes"])),
        sweeps=tuple(sweeps),
    )
    for row in tables["texts"].to_pylist():
        key = (OF_TEXTS, row["summary"], row["run_id"], row["step"], row["source"])
        frames.cache.setdefault(key, {})[row["key"]] = row["value"]
    return frames


# --- merging


def merged(parts: Sequence[Frames]) -> Frames:
    """The runs of several bundles as those of one study. A run that is in several of them is read from the first.

    If the bundles are of several studies, `studies` has the frames of each, since claims belong to a study.
    Raises LookupError for two runs of one arm with one seed.
    """
    if len(parts) == 1:
        return parts[0]
    new_ids: list[set[str]] = []  # by part, the runs that no earlier part has
    for part in parts:
        new_ids.append({str(i) for i in part.runs["run_id"]} - set().union(*new_ids))
    pairs = list(zip(parts, new_ids, strict=True))
    packed = Packed({name: pa.concat_tables(_rows_of(part, name, ids) for part, ids in pairs) for name in SCHEMAS})
    runs = [part.runs[part.runs["run_id"].isin(list(ids))] for part, ids in pairs]
    cache = {
        k: v for part in reversed(parts) for k, v in part.cache.items() if isinstance(k, tuple) and k[0] == OF_TEXTS
    }
    together = replace(
        parts[0],
        runs=pd.concat(runs, ignore_index=True),
        curves=packed,
        judgements=Counts.from_table(packed.tables["counts"]),
        stored=packed,
        study=" and ".join(dict.fromkeys(part.study for part in parts)),
        title=" and ".join(dict.fromkeys(part.title for part in parts)),
        commands=tuple(dict.fromkeys(c for part in parts for c in part.commands)),
        notes=tuple(dict.fromkeys(n for part in parts for n in part.notes)),
        sweeps=_sweeps(parts),
        studies=_studies(parts),
        cache=cache,
    )
    check_seeds(together.rows)
    return together


def _studies(parts: Sequence[Frames]) -> tuple[Frames, ...]:
    """The frames of each study; () if there is only one."""
    of_study: dict[str, list[Frames]] = {}
    for part in parts:
        of_study.setdefault(part.study, []).append(part)
    return tuple(map(merged, of_study.values())) if len(of_study) > 1 else ()


def _sweeps(parts: Sequence[Frames]) -> tuple[Sweep, ...]:
    """The distinct sweeps, oldest first as in `read_sweeps`: the claims of a study are those of its newest sweep."""
    by_id: dict[str, Sweep] = {}
    for sweep in sorted((s for part in reversed(parts) for s in part.sweeps), key=lambda s: s.created):
        by_id[sweep.sweep_id] = sweep
    return tuple(sorted(by_id.values(), key=lambda s: (s.created, s.sweep_id)))


def _rows_of(part: Frames, name: str, run_ids: Collection[str]) -> pa.Table:
    table = cast(Packed, part.curves).tables[name]
    return table.filter(pa.array([run_id in run_ids for run_id in table["run_id"].to_pylist()], pa.bool_()))
