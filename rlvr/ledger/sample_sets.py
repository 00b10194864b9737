"""Samples of one policy under one setting, for as many problems and as many samples as anybody has asked for.

A directory of chunks, each a Parquet file whose name is the SHA-256 of its bytes: it appears complete or not at all,
and one with another content is set aside and sampled again. What is there is known from the chunks alone, so that any
number of processes can add to it, and an evaluation that wants more samples than the one before draws the missing ones.
"""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

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
from rlvr.ledger.files import read_json, whole, write_json
from rlvr.records import Problem

log = logging.getLogger("rlvr")

CHUNK = 1024  # samples of a chunk, at most: what a kill costs
BLOCK = 64  # problems whose samples are put in order at once
KEY = ["key", "sample"]  # columns that tell samples apart
OPEN = 32  # chunks kept in memory while samples are put in order

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("problem_id", pa.string()),
        ("key", pa.string()),  # `key_of` the problem
        ("sample", pa.int64()),
        ("prompt", pa.string()),  # as the tokenizer reads it back: with the chat template, if there is one
        ("response", pa.string()),
        ("answer", pa.string()),  # what it comes to, for majorities and for counting different ones; null: nothing
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("num_tokens", pa.int64()),
        ("finished", pa.bool_()),
        ("logp", pa.float64()),  # nats, of the whole response under the policy; null where the engine cannot tell
        ("logp_sampling", pa.float64()),  # the same under what was drawn from: top-p, greedy
    ]
)


@dataclass(frozen=True)
class Wanted:
    """Samples first, first + 1, ... first + count - 1 of a problem, by its place in a list of problems."""

    problem: int
    first: int
    count: int


def set_id(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits naming what decides samples, whatever their number."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def key_of(problem: Problem) -> str:
    """Names a problem by its content: where a data set is changed under its name, old samples are not taken for new."""
    content = json.dumps([problem.id, problem.prompt, problem.answer], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


class SampleSet:
    """The chunks of one directory. identity: what decides its samples, kept beside them for people."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        if read_json(layout.sample_set_info(directory)) is None:
            write_json(layout.sample_set_info(directory), identity)

    # --- writing

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Path:
        """One more chunk, with the columns of SCHEMA."""
        file = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], SCHEMA), file, compression="zstd")
        content = file.getvalue().to_pybytes()
        path = self.directory / f"{hashlib.sha256(content).hexdigest()}.parquet"
        with whole(path) as aside:
            aside.write_bytes(content)
        return path

    # --- reading

    @functools.cached_property
    def chunks(self) -> Mapping[Path, Mapping[str, tuple[int, ...]]]:
        """Of each chunk, the samples that it holds of each problem; damaged ones are set aside. Read once."""
        held: dict[Path, Mapping[str, tuple[int, ...]]] = {}
        for path in sorted(self.directory.glob("*.parquet")):
            if path.name.startswith(digests.DAMAGED):
                continue
            if _digest(path) != path.stem:
                log.error("%s is not as it was written. It is kept as %s", path, _set_aside(path))
                continue
            table = pq.read_table(path, columns=KEY)
            numbers: dict[str, list[int]] = defaultdict(list)
            for problem, sample in zip(*table.to_pydict().values(), strict=True):
                numbers[problem].append(sample)
            held[path] = {problem: tuple(samples) for problem, samples in numbers.items()}
        return held

    def refresh(self) -> None:
        """See what has been added since."""
        self.__dict__.pop("chunks", None)

    def missing(self, keys: Sequence[str], samples: int) -> list[list[Wanted]]:
        """The first `samples` samples of these problems that no chunk holds, in pieces of at most CHUNK samples."""
        there: dict[str, set[int]] = defaultdict(set)
        for held in self.chunks.values():
            for problem, numbers in held.items():
                there[problem].update(numbers)
        pieces: list[list[Wanted]] = [[]]
        room = CHUNK
        for place, problem in enumerate(keys):
            for first, count in _gaps(there[problem], samples):
                while count:
                    taken = min(count, room)
                    pieces[-1].append(Wanted(place, first, taken))
                    first, count, room = first + taken, count - taken, room - taken
                    if not room:
                        pieces.append([])
                        room = CHUNK
        return [piece for piece in pieces if piece]

    def ordered(self, keys: Sequence[str], samples: int) -> Iterator[pa.Table]:
        """The first `samples` samples of these problems (`key_of` each), in this order, BLOCK problems a table.

        Raises ValueError if one is missing.
        """
        of_problem: dict[str, list[Path]] = defaultdict(list)
        for path, held in self.chunks.items():
            for problem in held:
                of_problem[problem].append(path)
        read = functools.lru_cache(maxsize=OPEN)(lambda path: pq.read_table(path, schema=SCHEMA))
        for start in range(0, len(keys), BLOCK):
            block = keys[start : start + BLOCK]
            paths = dict.fromkeys(path for problem in block for path in of_problem[problem])
            names, place = pa.array(block), {problem: i for i, problem in enumerate(block)}
            parts = [_of(read(path), names, samples) for path in paths]
            table = pa.concat_tables([SCHEMA.empty_table(), *parts])
            found: dict[tuple[int, int], int] = {}
            for row, (problem, sample) in enumerate(zip(*table.select(KEY).to_pydict().values(), strict=True)):
                found.setdefault((place[problem], sample), row)  # two processes may have drawn the same sample
            if len(found) != len(block) * samples:
                raise ValueError(f"{self.directory} lacks {len(block) * samples - len(found)} samples.")
            yield table.take(pa.array([found[key] for key in sorted(found)]))


def write_ordered(parts: Iterator[pa.Table], path: Path, *, step: int) -> None:
    """One Parquet file of all parts, with the number of the step as its first column; a row group for each part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.remove(SCHEMA.get_field_index("key")).insert(0, pa.field("step", pa.int64()))
    with whole(path) as aside, pq.ParquetWriter(aside, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(
                part.drop_columns("key").add_column(0, schema.field(0), pa.array([step] * part.num_rows, pa.int64()))
            )


def _gaps(there: set[int], samples: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the runs of numbers below `samples` that are not there."""
    first = 0
    for number in range(samples + 1):
        if number == samples or number in there:
            if number > first:
                yield first, number - first
            first = number + 1


def _of(table: pa.Table, problems: pa.Array, samples: int) -> pa.Table:
    compute: Any = pc
    wanted = compute.and_(compute.is_in(table["key"], value_set=problems), compute.less(table["sample"], samples))
    return table.filter(wanted)


def _digest(path: Path) -> str:
    return digests.digests(path.parent, [path.name])[path.name]


def _set_aside(path: Path) -> Path:
    return path.rename(path.with_name(f"{digests.DAMAGED}{path.name}"))
