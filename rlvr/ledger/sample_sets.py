"""Samples of one policy under one setting, shared by all evaluations of it.

A set is a directory of chunks, each a Parquet file named by the SHA-256 of its bytes: it appears complete or not at
all, and one with other content is set aside and sampled again. The chunks alone define which samples exist, so that any
number of processes can add to a set, and an evaluation with more samples than the one before draws the missing ones.
"""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import functools
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlvr.ledger import digests, layout
from rlvr.ledger.files import read_json, write_atomically, write_json
from rlvr.records import Problem

log = logging.getLogger("rlvr")

CHUNK = 1024  # samples of a chunk, at most: as many are lost if the process is killed
BLOCK = 64  # problems whose samples are sorted at once
KEY = ["key", "sample"]  # columns that identify a sample
OPEN = 32  # chunks kept in memory while samples are sorted

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("problem_id", pa.string()),
        ("key", pa.string()),  # `key_of` the problem
        ("sample", pa.int64()),
        ("prompt", pa.string()),  # decoded by the tokenizer: with the chat template, if there is one
        ("response", pa.string()),
        ("answer", pa.string()),  # final answer, for majorities and for counting different ones; null: none
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("num_tokens", pa.int64()),
        ("finished", pa.bool_()),
        ("logp", pa.float64()),  # nats, of the whole response under the policy; null if the engine does not return it
        ("logp_sampling", pa.float64()),  # the same under the distribution drawn from: top-p, greedy
    ]
)


@dataclass(frozen=True)
class Wanted:
    """Samples first, first + 1, ... first + count - 1 of a problem, given by its index in a list of problems."""

    problem: int
    first: int
    count: int


def set_id(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that identify what decides the samples of a set, but not their number."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def key_of(problem: Problem) -> str:
    """Identifies a problem by its content: if a data set changes under its name, its old samples are not used."""
    content = json.dumps([problem.id, problem.prompt, problem.answer], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


class SampleSet:
    """The chunks of one directory. identity: what decides its samples; kept beside them for people to read."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        if read_json(layout.sample_set_info(directory)) is None:
            write_json(layout.sample_set_info(directory), identity)

    # --- writing

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write one more chunk. rows: with the columns of SCHEMA."""
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], SCHEMA), buffer, compression="zstd")
        content = buffer.getvalue().to_pybytes()
        path = self.directory / f"{hashlib.sha256(content).hexdigest()}.parquet"
        with write_atomically(path) as aside:
            aside.write_bytes(content)
        return path

    # --- reading

    @functools.cached_property
    def chunks(self) -> Mapping[Path, Mapping[str, tuple[int, ...]]]:
        """{chunk: {key of a problem: its samples in this chunk}}. Damaged chunks are set aside. Read once."""
        chunks: dict[Path, Mapping[str, tuple[int, ...]]] = {}
        for path in sorted(self.directory.glob("*.parquet")):
            if path.name.startswith(digests.DAMAGED):
                continue
            if digests.digests(path.parent, [path.name])[path.name] != path.stem:
                log.error("%s is not as it was written. It is kept as %s", path, digests.set_aside(path))
                continue
            table = pq.read_table(path, columns=KEY)
            numbers: dict[str, list[int]] = defaultdict(list)
            for problem, sample in zip(*table.to_pydict().values(), strict=True):
                numbers[problem].append(sample)
            chunks[path] = {problem: tuple(samples) for problem, samples in numbers.items()}
        return chunks

    def refresh(self) -> None:
        """Let `chunks` be read again, with those that were added since."""
        self.__dict__.pop("chunks", None)

    def missing(self, keys: Sequence[str], samples: int) -> list[list[Wanted]]:
        """Those of the first `samples` samples of these problems that no chunk contains, in pieces of at most CHUNK."""
        existing: dict[str, set[int]] = defaultdict(set)
        for chunk in self.chunks.values():
            for problem, numbers in chunk.items():
                existing[problem].update(numbers)
        pieces: list[list[Wanted]] = [[]]
        room = CHUNK
        for index, problem in enumerate(keys):
            for first, count in _gaps(existing[problem], samples):
                while count:
                    num_fitting = min(count, room)
                    pieces[-1].append(Wanted(index, first, num_fitting))
                    first, count, room = first + num_fitting, count - num_fitting, room - num_fitting
                    if not room:
                        pieces.append([])
                        room = CHUNK
        return [piece for piece in pieces if piece]

    def ordered(self, keys: Sequence[str], samples: int) -> Iterator[pa.Table]:
        """The first `samples` samples of these problems (`key_of` each), in this order, in tables of BLOCK problems.

        Raises ValueError if a sample is missing.
        """
        paths_of: dict[str, list[Path]] = defaultdict(list)
        for path, chunk in self.chunks.items():
            for problem in chunk:
                paths_of[problem].append(path)
        read = functools.lru_cache(maxsize=OPEN)(lambda path: pq.read_table(path, schema=SCHEMA))
        for start in range(0, len(keys), BLOCK):
            block = keys[start : start + BLOCK]
            paths = dict.fromkeys(path for problem in block for path in paths_of[problem])
            block_keys, index = pa.array(block), {problem: i for i, problem in enumerate(block)}
            parts = [_select(read(path), block_keys, samples) for path in paths]
            table = pa.concat_tables([SCHEMA.empty_table(), *parts])
            rows: dict[tuple[int, int], int] = {}  # row of the table by (problem, sample)
            for row, (problem, sample) in enumerate(zip(*table.select(KEY).to_pydict().values(), strict=True)):
                rows.setdefault((index[problem], sample), row)  # two processes may have drawn the same sample
            if len(rows) != len(block) * samples:
                raise ValueError(f"{self.directory} lacks {len(block) * samples - len(rows)} samples.")
            yield table.take(pa.array([rows[key] for key in sorted(rows)]))


def write_ordered(parts: Iterator[pa.Table], path: Path, *, step: int, right_answer: Mapping[str, str]) -> None:
    """Write all parts to one Parquet file, a row group for each. The number of the step becomes the first column, and
    what would have been right the last. right_answer: by key of the problem.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    first, last = pa.field("step", pa.int64()), pa.field("right_answer", pa.string())
    schema = SCHEMA.remove(SCHEMA.get_field_index("key")).insert(0, first).append(last)
    with (
        write_atomically(path) as aside,
        pq.ParquetWriter(aside, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for part in parts:
            steps = pa.array([step] * part.num_rows, first.type)
            answers = pa.array([right_answer[key] for key in part["key"].to_pylist()], last.type)
            writer.write_table(part.drop_columns("key").add_column(0, first, steps).append_column(last, answers))


def _gaps(existing: set[int], samples: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each unbroken series of numbers below `samples` that are not in `existing`."""
    first = 0
    for number in range(samples + 1):
        if number == samples or number in existing:
            if number > first:
                yield first, number - first
            first = number + 1


def _select(table: pa.Table, problems: pa.Array, samples: int) -> pa.Table:
    """The rows with one of these keys of problems, and a sample number below `samples`."""
    compute: Any = pc
    is_selected = compute.and_(compute.is_in(table["key"], value_set=problems), compute.less(table["sample"], samples))
    return table.filter(is_selected)
