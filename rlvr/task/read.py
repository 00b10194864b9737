"""Rows of a data set: JSON lines (plain or gzip) and Parquet by path, or a data set of the Hugging Face hub by name."""

import contextlib
import difflib
import functools
import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.records import NotAvailable

Row = dict[str, Any]
SPLITS = {"train", "test", "dev", "val", "valid", "validation", "eval"}
MOST_INFLATED, INFLATION = 1 << 30, 200  # bytes of rows beyond which their file is no less than 1 / INFLATION of them
LONGEST_ROW = 1 << 28  # bytes
SHOWN = 8  # names of files in a message
BRIEF_S = 3.0  # timeout of the hub's first response in a dry run
HUB_NAME = re.compile(
    r"(?P<path>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<config>[\w.-]+))?(:(?P<split>[\w.\[\]%:-]+))?"
)


@dataclass(frozen=True)
class DataTable:
    """The rows of a data set, each with its place (for messages), and a short name of the data set."""

    name: str
    rows: list[tuple[str, Row]]  # (place, row)


def read(where: str, split: str, revision: str | None = None) -> DataTable:
    """The rows of a file or a hub data set: `organisation/name[@revision][/config][:split]`.

    split, revision: of a hub data set, if `where` has none. Relative paths start at the current directory.
    Raises ValueError: no such file, unknown format, corrupt line (with its number), no rows. Raises NotAvailable for a
    hub data set that cannot be read.
    """
    path = Path(where).expanduser()
    reader = next((reader for suffix, reader in READERS.items() if path.name.endswith(suffix)), None)
    is_file_name = reader is not None or (path.suffix[1:].isalpha() and path.parent.is_dir())
    if path.is_file() and reader is not None:
        table = DataTable(_name(path), list(reader(path)))
    elif path.exists():
        raise ValueError(f"{where} is not a data file: pass a {', '.join(READERS)} file{_readable(path)}")
    elif path.is_symlink():
        raise ValueError(f"{where} is a symbolic link to {path.readlink()}, which ends in a loop or at no file.")
    elif not is_file_name and (name := HUB_NAME.fullmatch(where)):
        table = DataTable(name["path"].split("/")[1], _hub(where, name, split, revision))
    else:
        raise ValueError(f"{where} does not exist.{_nearby(path)}")
    if not table.rows:
        raise ValueError(f"{where} has no rows.")
    return table


def _jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    open_file = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with open_file(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW), b""), 1):
                if len(line) == LONGEST_ROW:
                    raise ValueError(f"a row of {LONGEST_ROW >> 20} MiB or more")
                if line.strip():
                    yield f"{path}:{number}", _object(line)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}:{number}: {error}") from None


def _object(line: bytes) -> Row:
    fault = ""
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        kind = "ISO-8859-1" if error.encoding.startswith("utf-8") else "UTF-16"
        fault = f" (byte {error.start + 1} of the line is not UTF-8; if the file is {kind}: iconv -f {kind} -t UTF-8)"
        row = None
    except json.JSONDecodeError as error:
        fault, row = f" ({error.msg}: character {error.pos + 1})", None
    except RecursionError:
        fault, row = " (it is nested without end)", None
    if b"\\ud" in line.lower():
        json.dumps(row, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError, for half a character
    if not isinstance(row, dict):
        shown = "other bytes" if "UTF-8" in fault else line[:40].decode(errors="replace").strip()
        raise ValueError(f"a JSON object is expected, not {shown}{fault}")
    return row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    from pyarrow import parquet

    num_bytes, number = 0, 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
            rows = batch.to_pylist()
            # A dictionary holds a text once, however many rows have it.
            texts = sum(len(cell) for row in rows for cell in row.values() if isinstance(cell, str))
            num_bytes += max(texts, batch.nbytes)
            if num_bytes > max(MOST_INFLATED, INFLATION * path.stat().st_size):
                raise ValueError(
                    f"{path}: its first {number} rows are more than {INFLATION} times as large as the file."
                )
            for row in rows:
                number += 1
                yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: {error}") from None


READERS: dict[str, Callable[[Path], Iterator[tuple[str, Row]]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".parquet": _parquet,
}


class BriefHub:
    """The Hugging Face hub in a dry run. If it is not reachable, only its cache is read, without waiting.

    The hub's client library retries for half a minute for each data set, which suits a launch but not a dry run.
    """

    @functools.cached_property
    def is_reachable(self) -> bool:
        """Whether the hub is reachable; tested once."""
        from huggingface_hub import constants, get_session
        from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage] - its HTTP client's

        try:
            get_session().head(constants.ENDPOINT, timeout=BRIEF_S)
        except (OSError, HTTPError):  # OSError: HF_HUB_OFFLINE is set
            return False
        return True

    @contextlib.contextmanager
    def in_use(self) -> Generator[None, None, None]:
        """A context in which `read` uses this hub: from its cache only if it is not reachable."""
        token = _brief.set(self)
        try:
            yield
        finally:
            _brief.reset(token)


_brief: ContextVar[BriefHub | None] = ContextVar("brief hub", default=None)


@contextlib.contextmanager
def _offline() -> Generator[None, None, None]:
    """Sets what HF_HUB_OFFLINE=1 sets: the libraries read that variable only when they are imported."""
    from datasets import config  # type: ignore[import-not-found]
    from huggingface_hub import constants

    flag = "HF_HUB_OFFLINE"
    before = [(module, getattr(module, flag)) for module in (config, constants)]
    for module, _ in before:
        setattr(module, flag, True)
    try:
        yield
    finally:
        for module, value in before:
            setattr(module, flag, value)


def _hub(where: str, name: re.Match[str], split: str, revision: str | None) -> list[tuple[str, Row]]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise NotAvailable(
            f"{where} is not a file here.{_nearby(Path(where))} "
            "To read a data set from the Hugging Face hub: pip install 'rlvr[hub]'"
        ) from None
    brief = _brief.get()
    unreachable = brief is not None and not brief.is_reachable
    try:
        with _offline() if unreachable else contextlib.nullcontext():
            revision = name["revision"] or revision
            rows = load_dataset(name["path"], name["config"], split=name["split"] or split, revision=revision)
    except (ValueError, OSError) as error:  # unknown data set, config or split; no network
        reason = " ".join(str(error).split())
        if unreachable and isinstance(error, ConnectionError):
            reason = "it does not answer, and its cache on this machine has no such data"
        raise NotAvailable(f"{where} cannot be read from the hub: {reason}") from None
    # Without the hub the library reads the newest commit in its cache, whatever the revision: the path names it.
    files = [str(file["filename"]) for file in rows.cache_files]
    if re.fullmatch("[0-9a-f]{40}", revision or "") and not all(f"/{revision}/" in file for file in files):
        raise NotAvailable(f"{where} cannot be read from the hub: its cache on this machine has another commit")
    return [(f"{where}, row {number}", dict(row)) for number, row in enumerate(rows, 1)]


def _name(path: Path) -> str:
    """The file's name without suffixes, or its folder's name if the file has a split's name (gsm8k/test.jsonl.gz)."""
    stem = path.name.split(".")[0]
    return path.absolute().parent.name if stem in SPLITS else stem


def _nearby(path: Path) -> str:
    """For a message: a similar name, or the content, of the deepest folder of the path that exists."""
    absolute = path.absolute()
    parent = next(p for p in absolute.parents if p.is_dir())
    missing = absolute.relative_to(parent).parts[0]
    names = sorted(p.name for p in parent.iterdir())
    if close := difflib.get_close_matches(missing, names, n=1):
        return f" Did you mean {parent / close[0]}?"
    return f" {parent} has: {_listed(parent)}."


def _readable(path: Path) -> str:
    """For a message, what to pass instead of a path: a file of that directory, or a converted table."""
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir() if p.is_file() and p.name.endswith(tuple(READERS)))
        return f", such as {', '.join(names[:SHOWN])}." if names else ", of which this directory holds none."
    # A text of a table stays as it is written: 03, 1.50, None, NA.
    as_text = "dtype=str, keep_default_na=False, na_values='').to_json({!r}, orient='records', lines=True)"
    code = {
        ".csv": f"import pandas; pandas.read_csv({{!r}}, {as_text}",
        ".tsv": f"import pandas; pandas.read_csv({{!r}}, sep='\\t', {as_text}",
        ".json": "import json; open({1!r}, 'w').writelines(json.dumps(r) + '\\n' for r in json.load(open({0!r})))",
    }.get(path.suffix)
    if code is None:
        return "."
    target = path.with_suffix(".jsonl")
    if path.suffix == ".json":
        with contextlib.suppress(ValueError), path.open("rb") as file:
            if _object(file.readline(LONGEST_ROW)):
                return f". It has a JSON object on each line: rename it to {target.name}."
    return f'. Convert it: python -c "{code.format(str(path), str(target))}".'


def _listed(folder: Path) -> str:
    names = sorted(p.name + "/" * p.is_dir() for p in folder.iterdir() if not p.name.startswith("."))
    if not names:
        return "nothing"
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
