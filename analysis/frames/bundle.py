"""A study in one file, a bundle: all the data that its tables, figures and page are made from, without the runs.

A bundle is a zip archive that is never unpacked to disk: `about.json` (the study, its sweeps and claims), `runs.json`
(the frame `runs`: where each run comes from, its config, its state) and, as Parquet, the tables of frames/tables.py:

- of every run: the counts of all its evaluations, its digest, the curves of all metrics of training, its last policy;
- of every evaluation of a run, the numbers on its responses that frames/samples.py names (`stored`);
- of the responses themselves, those that the page shows.

The same runs give the same bytes, whatever was read before. There are no weights, and no absolute path in the two
descriptions. A bundle may come from an untrusted source: members are read by their names into memory, within limits;
nothing is unpickled or executed, no path in it is written to, and control characters in its texts are replaced (those
of prompts and responses, which only the page shows, are kept).
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.frames import own_code, samples
from analysis.frames.digest import USUAL_METRICS, What
from analysis.frames.frames import CONFIG, Frames, check_seeds, grouped
from analysis.frames.runs import COLUMNS, without_secret
from analysis.frames.samples import LATER, Response, of_texts, stored
from analysis.frames.tables import METRICS, SCHEMAS, TEXT, Tables, decoded, schema, with_names
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import write_atomically
from rlvr.ledger.sweeps import Sweep
from rlvr.ledger.tags import redact
from rlvr.ledger.terminal import printable

FORMAT = 1
SUFFIX = layout.BUNDLE
MOST_BYTES, MOST_ROWS = 1 << 30, 50_000_000  # of all members together, unpacked, and of a table's texts; of a table
MOST_JSON, MOST_OBJECTS = 1 << 25, 2_000_000  # bytes of both descriptions; rows of a table that become Python's objects
MOST_SAMPLES = 1 << 16  # of a problem in one evaluation
MOST_CURVES = 100_000  # runs times metrics; of a larger study the usual metrics alone are stored: `drawn` has MOST_ROWS
# Keys of sweep.json that describe the machine that launched it.
_OF_THE_MACHINE = ("config_dirs", "import_paths", "home", "cwd", "python", "tracker")
# Where a word or a value begins, and an absolute path of two parts and more.
_START, _PATH = r"""(?<![^\s=\[,'"(])""", r"""/(?:[^\s/=,'"()\[\]{}\\]+/)+[^\s/=,'"()\[\]{}\\]*"""
_NOT_TUNING = "Knobs were tuned: the runs that chose their values are not in this bundle."
_SHOWN_ON_THE_PAGE = ("prompt", "response", *LATER)  # and nowhere else
Shown = Mapping[tuple[str, int], Collection[Response]]  # by run and step, samples that are shown


# --- writing


def write(frames: Frames, file: Path, shown: Shown = MappingProxyType({})) -> None:
    """Write these frames to a bundle. shown: the responses that its page is to show."""
    names = {name for run in frames.rows for name in frames.digest.names(run.run_id)}
    tables = {name: frames.tables[name] for name in ("counts", "digest", "policy")}
    drawn = frames.tables["drawn"]
    tables["drawn"] = drawn if len(frames.rows) * len(names) <= MOST_CURVES else with_names(drawn, USUAL_METRICS)
    tables |= {"texts": _texts(frames), "responses": _responses(frames, shown)}
    about = {
        "format": FORMAT,
        **{name: getattr(frames, name) for name in ("study", "question", "title", "origin")},
        "commands": list(frames.commands),
        "notes": [*frames.notes, *([_NOT_TUNING] if frames.tuned is not None else [])],
        "sweeps": [_sweep_to_json(sweep) for sweep in frames.sweeps],
    }
    descriptions = _of_no_machine({"about.json": about, "runs.json": _runs_to_json(frames.runs)})
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(file, durable=False) as aside, zipfile.ZipFile(aside, "w") as archive:
        for name, description in descriptions.items():
            _put(archive, name, _json(description))
        for name in SCHEMAS:
            if tables[name].num_rows:
                _put(archive, f"{name}.parquet", _parquet(name, tables[name]))


def _texts(frames: Frames) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for run in frames.rows:
        for step in frames.stored.steps(run.run_id):
            for source, texts in frames.stored.texts(run.run_id, step).items():
                for summary in stored(run.task):
                    place = {"summary": summary, "run_id": run.run_id, "step": step, "source": source}
                    numbers = of_texts(summary, texts)
                    rows += [{**place, "key": key, "value": float(value)} for key, value in numbers.items()]
    return pa.Table.from_pylist(rows, schema("texts"))


def _responses(frames: Frames, shown: Shown) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for (run_id, step), of_evaluation in shown.items():
        problems = {(response.source, response.problem_id) for response in of_evaluation}
        chosen = set(of_evaluation)
        in_order = [response for response in frames.stored.responses(run_id, step, problems) if response in chosen]
        rows += [{"run_id": run_id, "step": step, **response.__dict__} for response in in_order]
    return pa.Table.from_pylist(rows, schema("responses"))


def _parquet(name: str, table: pa.Table) -> bytes:
    """A table by run id; of a run the order of rows stays. The cache has runs in the order in which it read them."""
    codes, names = decoded(table, "run_id")
    rank = np.argsort(np.argsort(names))
    by_run = table.take(pa.array(np.argsort(rank[codes], kind="stable")))
    out = io.BytesIO()
    plain = by_run.select(list(SCHEMAS[name])).cast(schema(name)).replace_schema_metadata(None)
    pq.write_table(plain, out, compression="zstd", compression_level=9)
    return out.getvalue()


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


def _runs_to_json(runs: pd.DataFrame) -> dict[str, Any]:
    """By column its dtype and values; an unknown value (NaN) is null."""
    columns: dict[str, Any] = {}
    for name in map(str, runs.columns):
        values = [None if isinstance(v, float) and np.isnan(v) else v for v in runs[name].tolist()]
        columns[name] = {"dtype": str(runs[name].dtype), "values": values}
    return columns


def _of_no_machine(descriptions: Mapping[str, Any]) -> dict[str, Any]:
    """The descriptions with as many last parts of each absolute path in their texts as tell the paths apart, and no
    fewer than two. A knob that is a path may contain spaces."""
    columns = descriptions["runs.json"].items()
    knobs = [value for name, column in columns if name.startswith(CONFIG) for value in column["values"]]
    whole = {value for value in knobs if isinstance(value, str) and value.startswith("/") and value.count("/") > 1}
    path = re.compile(f"{_START}(?:{'|'.join([*map(re.escape, sorted(whole, key=len, reverse=True)), _PATH])})")
    paths = {found: found.split("/") for text in _texts_in(descriptions) for found in path.findall(text)}
    number = 2
    while len({tuple(parts[-number:]) for parts in paths.values()}) < len(paths):
        number += 1
    short = {found: "/".join(["…", *parts[-number:]]) for found, parts in paths.items()}
    return _mapped(descriptions, lambda text: path.sub(lambda match: short[match[0]], text))


def _texts_in(content: Any) -> Iterator[str]:
    """The texts of plain data, keys included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for part in (*content, *content.values()) if isinstance(content, Mapping) else content:
            yield from _texts_in(part)


def _mapped(content: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text changed, keys included."""
    if isinstance(content, Mapping):
        return {_mapped(key, change): _mapped(part, change) for key, part in content.items()}
    if isinstance(content, list | tuple):
        return [_mapped(part, change) for part in content]
    return change(content) if isinstance(content, str) else content


# --- reading


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
    except UNREADABLE as error:
        raise LookupError(f"{file} is no bundle that can be read: {error}") from None


# What contents that are no bundle's may raise, here and in what is computed from them. RuntimeError: a member is
# encrypted, or of a later version of zip. OverflowError: a number is too large for a column.
UNREADABLE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RuntimeError, EOFError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, pa.ArrowException),
)


def _members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    known = {"about.json", "runs.json", *(f"{name}.parquet" for name in SCHEMAS)}
    infos = [info for info in archive.infolist() if info.filename in known]
    if len(infos) > len(known) or sum(info.file_size for info in infos) > MOST_BYTES:
        raise ValueError(f"it holds more than {MOST_BYTES >> 20} MiB")
    if sum(info.file_size for info in infos if info.filename.endswith(".json")) > MOST_JSON:
        raise ValueError(f"its description holds more than {MOST_JSON >> 20} MiB")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise ValueError("it is compressed in another way than bundles are")
    members: dict[str, bytes] = {}
    for info in infos:
        with archive.open(info) as member:
            members[info.filename] = member.read(info.file_size)
    return members


def _table(name: str, data: bytes | None) -> pa.Table:
    if data is None:
        return schema(name).empty_table()
    limits: dict[str, Any] = {"thrift_string_size_limit": 1 << 24, "thrift_container_size_limit": 1 << 20}
    file = pq.ParquetFile(io.BytesIO(data), **limits)
    size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    too_much = ValueError(f"its table {name} holds more than {MOST_ROWS:,} rows or {MOST_BYTES >> 20} MiB")
    if file.metadata.num_rows > (MOST_OBJECTS if name in ("texts", "responses") else MOST_ROWS) or size > MOST_BYTES:
        raise too_much
    columns = {column: kind for column, kind in SCHEMAS[name].items() if column in file.schema_arrow.names}
    if not file.schema_arrow.equals(pa.schema(list(columns.items()))) or {*SCHEMAS[name]} - {*columns} - {*LATER}:
        raise ValueError(f"its table {name} has other columns than {', '.join(SCHEMAS[name])}")
    # A few bytes may say that one long text stands in every row: as a dictionary it is in memory once.
    texts = [column for column, kind in columns.items() if kind == TEXT]
    table = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts, **limits).read(use_threads=False)
    if sum(map(_text_bytes, table.select(texts).columns)) > MOST_BYTES:
        raise too_much
    if name == "counts" and not _are_counts(*(table[column].to_numpy() for column in ("n", "correct", "errors"))):
        raise ValueError("its table counts has more right samples than samples, or more samples than an evaluation has")
    for column in texts:
        if column not in _SHOWN_ON_THE_PAGE:
            table = table.set_column(table.schema.get_field_index(column), column, _printable(table[column]))
    for column in LATER if name == "responses" else ():
        if column not in columns:
            table = table.append_column(column, pa.nulls(table.num_rows, TEXT))
    return table.cast(schema(name))


def _are_counts(n: NDArray[Any], correct: NDArray[Any], errors: NDArray[Any]) -> bool:
    return bool(np.all((correct >= 0) & (correct <= n) & (errors >= 0) & (n + errors.astype(int) <= MOST_SAMPLES)))


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of all texts of a column of dictionaries, once they are no longer dictionaries."""
    compute: Any = pc
    lengths = [compute.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(compute.sum(part.cast(pa.int64())).as_py() or 0 for part in lengths)


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of dictionaries with control characters replaced, because these texts are printed in terminals."""
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, pa.array(_cleaned(chunk.dictionary.to_pylist()), TEXT))
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
    return _mapped(content, printable)


_DTYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(COLUMNS, ("str",)),
    **dict.fromkeys(("eta", "beta", "seed", "steps", "created"), ("float64", "int64")),
    **dict.fromkeys(("git_dirty", "own_gpus", "reference"), ("bool", "object")),
    "typed": ("object",),
    own_code.COLUMN: ("str",),
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
    return pd.DataFrame({"own_gpus": False, own_code.COLUMN: "", **by_name})


def _frames(about: Mapping[str, Any], runs: pd.DataFrame, tables: Mapping[str, pa.Table]) -> Frames:
    sweeps = [
        Sweep(str(s["sweep_id"]), dict(s["info"]), tuple(dict(run) for run in s["runs"])) for s in about["sweeps"]
    ]
    return Frames(
        runs=runs,
        **_stored(tables),
        study=str(about["study"]),
        question=str(about["question"]),
        title=str(about["title"]),
        origin=str(about["origin"]),
        commands=tuple(map(str, about["commands"])),
        notes=tuple(map(str, about["notes"])),
        sweeps=tuple(sweeps),
    )


def _stored(tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """The fields `tables` and `stored` of frames, from the tables of a bundle."""
    readers: dict[str, Any] = {name: (lambda table=table: table) for name, table in tables.items()}
    readers[METRICS] = lambda: _metrics(tables)
    return {"tables": Tables(readers), "stored": samples.of_table(tables["responses"], complete=False)}


def _metrics(tables: Mapping[str, pa.Table]) -> pa.Table:
    logged = tables["digest"].filter(pc.field("what") == What.LOGGED.value)
    parts = [table.select(["run_id", "step", "name", "value"]) for table in (logged, tables["drawn"])]
    return pa.concat_tables(parts, promote_options="permissive")


# --- merging


def merged(parts: Sequence[Frames], *, mixed_code: bool = False) -> Frames:
    """The runs of several bundles as those of one study. A run that is in several of them is read from the newest.

    If the bundles are of several studies, `studies` has the frames of each, since claims belong to a study. Raises
    LookupError for two runs of one arm with one seed and, unless `mixed_code`, for runs of one with different code.
    """
    together = _together([replace(part, mixed_code=mixed_code) for part in parts])
    if not mixed_code:
        own_code.refuse_mixed(together.runs)
    return together


def newest_first(frames: Frames) -> tuple[float, int]:
    """Orders bundles by their newest run; of the same runs the bundle that has more of them finished is newer."""
    return -float(frames.runs["created"].max()), -int((frames.runs["state"] == State.FINISHED).sum())


def _together(parts: Sequence[Frames]) -> Frames:
    if len(parts) == 1:
        return parts[0]
    oldest_first = sorted(range(len(parts)), key=lambda number: newest_first(parts[number]))[::-1]
    newest = {str(i): number for number in oldest_first for i in parts[number].runs["run_id"]}
    new_ids = [{i for i, of in newest.items() if of == number} for number in range(len(parts))]
    pairs = list(zip(parts, new_ids, strict=True))
    runs = [part.runs[part.runs["run_id"].isin(list(ids))] for part, ids in pairs]
    tables: dict[str, pa.Table] = {}
    for name in SCHEMAS:
        chosen = [pc.field("run_id").isin(pa.array(sorted(ids), TEXT)) for ids in new_ids]
        tables[name] = pa.concat_tables(p.tables[name].filter(c) for p, c in zip(parts, chosen, strict=True))
    together = replace(
        parts[0],
        runs=pd.concat(runs, ignore_index=True),
        **_stored(tables),
        study=" and ".join(dict.fromkeys(part.study for part in parts)),
        title=" and ".join(dict.fromkeys(part.title for part in parts)),
        commands=tuple(dict.fromkeys(c for part in parts for c in part.commands)),
        notes=tuple(dict.fromkeys(n for part in parts for n in part.notes)),
        sweeps=_sweeps(parts),
        studies=_studies(parts),
        cache={},
    )
    check_seeds(together.rows)
    return together


def _studies(parts: Sequence[Frames]) -> tuple[Frames, ...]:
    of_study = grouped(parts, lambda part: part.study)
    return tuple(map(_together, of_study.values())) if len(of_study) > 1 else ()


def _sweeps(parts: Sequence[Frames]) -> tuple[Sweep, ...]:
    """The distinct sweeps, oldest first as in `read_sweeps`, since the claims of a study are those of its newest sweep;
    those without a time as given."""
    by_id: dict[str, Sweep] = {}
    for sweep in (sweep for part in parts for sweep in part.sweeps):
        if sweep.sweep_id not in by_id or sweep.created > by_id[sweep.sweep_id].created:
            by_id[sweep.sweep_id] = sweep
    return tuple(sorted(by_id.values(), key=lambda s: s.created))
