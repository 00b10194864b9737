"""Data files: kinds, encodings, shapes of rows. Each holds the problem `½ + ½?` with the answer 1, or a fault."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tests.compatibility import code
from tests.support.tasks import make_task

HEAD = ("file", "content", "what `task=math` makes of it")
ROW: dict[str, Any] = {"problem": "½ + ½?", "answer": "1"}


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def columns(**row: Any) -> Callable[[Path], None]:
    return lambda path: parquet.write_table(pa.Table.from_pylist([row]), path)


LINE = lines(ROW)
CHAT = [{"role": "user", "content": ROW["problem"]}]
# (name of the file, what is in it, its bytes or how it is written)
FILES: list[tuple[str, str, bytes | Callable[[Path], object]]] = [
    ("x.jsonl", "a JSON object on each line, UTF-8", LINE),
    ("x.jsonl", "empty lines between", b"\n" + LINE + b"\n\n"),
    ("x.jsonl", "Windows line ends", LINE.replace(b"\n", b"\r\n")),
    ("x.jsonl", "UTF-8 with a byte order mark", b"\xef\xbb\xbf" + LINE),
    ("x.jsonl", "UTF-16", LINE.decode().encode("utf-16")),
    ("x.jsonl", "Latin-1", LINE.decode().encode("latin-1")),
    ("x.jsonl.gz", "the same, compressed", gzip.compress(LINE, mtime=0)),
    ("x.jsonl.gz", "cut short", gzip.compress(LINE, mtime=0)[:-9]),
    ("x.parquet", "columns", columns(**ROW)),
    ("x.parquet", "the answer as a number", columns(**{**ROW, "answer": 1})),
    ("x.parquet", "the answer in a column of records", columns(prompt=CHAT, reward_model={"ground_truth": "1"})),
    ("x.parquet", "no Parquet", b"PAR1"),
    ("x.json", "one list", json.dumps([ROW]).encode()),
    ("x.csv", "a table", b"problem,answer\n1 + 1?,2\n"),
    ("x.tsv", "a table", b"problem\tanswer\n1 + 1?\t2\n"),
    ("x.arrow", "another kind", b""),
    ("x.jsonl", "no rows", b""),
    ("x.jsonl", "a list on a line", lines([1])),
    ("x.jsonl", "a line that is cut", LINE[:20]),
    ("x.jsonl", "the problem as a chat of one message", lines({"prompt": CHAT, "answer": "1"})),
    ("x.jsonl", "a chat of several messages", lines({"prompt": [*CHAT, *CHAT], "answer": "1"})),
    ("x.jsonl", "columns `question`, `final_answer`", lines({"question": "½ + ½?", "final_answer": "1"})),
    ("x.jsonl", "`reward_model` as JSON text", lines({"prompt": CHAT, "reward_model": '{"ground_truth": "1"}'})),
    ("x.jsonl", "columns of other names", lines({"input": "½ + ½?", "output": "1"})),
    ("x.jsonl", "an answer that is missing", lines({**ROW, "answer": None})),
    ("x.jsonl", "an answer that is empty", lines({**ROW, "answer": " "})),
    ("x.jsonl", "an answer that is a list", lines({**ROW, "answer": ["1"]})),
    ("x.jsonl", "the same problem twice", lines(ROW, ROW)),
]


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    for name, content, data in FILES:
        path = folder / name
        path.write_bytes(data) if isinstance(data, bytes) else data(path)
        try:
            task = make_task("math", train=None, test=str(path), template="{problem}")
            problems = [task.problem("test", index) for index in range(task.size("test"))]
            read = [f"{code(p.prompt)} → {code(str(p.answer))}" for p in problems]
            outcome = "; ".join(read)
        except ValueError as error:
            outcome = f"refused: {error}".replace(f"{folder}/", "")
        yield f"`{name}`", content, outcome
        path.unlink()
