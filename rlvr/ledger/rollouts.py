"""Training rollouts on disk: one Parquet row per response, plain columns, nothing pickled."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger.samples import write_parquet
from rlvr.records import Completion, Problem, Reward, Rollout

SCHEMA = pa.schema(
    [
        ("group", pa.int64()),  # number of the prompt in its step: rows of a group stand together
        ("problem_id", pa.string()),
        ("source", pa.string()),
        ("sample", pa.int64()),
        ("prompt", pa.list_(pa.int64())),  # token ids
        ("tokens", pa.list_(pa.int64())),  # token ids of the response, the end token included where it was sampled
        ("logp", pa.list_(pa.float32())),  # nats, of each token under the policy that sampled
        ("logp_sampling", pa.list_(pa.float32())),  # nats, under what it was drawn from (top-p)
        ("finished", pa.bool_()),
        ("response", pa.string()),
        ("reward", pa.float64()),
        ("outcome", pa.string()),
        # Optimiser updates behind the oldest and the newest weights that drew a token of the group; null: not known.
        ("oldest_updates", pa.int64()),
        ("newest_updates", pa.int64()),
    ]
)
YOUNGER = ("oldest_updates", "newest_updates")  # files of earlier versions have no such columns


def write_rollouts(groups: Sequence[Rollout], path: Path) -> None:
    """Write whole groups, in order; the file appears only once it is complete."""
    write_parquet(_table(groups), path)


def to_bytes(groups: Sequence[Rollout]) -> bytes:
    """Whole groups, in order, for another process."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(_table(groups))
    return sink.getvalue().to_pybytes()


def of_bytes(data: bytes) -> list[Rollout]:
    """The groups of `to_bytes`, as `read_rollouts` has them."""
    with pa.ipc.open_stream(data) as stream:
        return _groups(stream.read_all())


def _table(groups: Sequence[Rollout]) -> pa.Table:
    rows = [
        (number, g, sample, g.completions[sample]) for number, g in enumerate(groups) for sample in range(len(g.texts))
    ]
    columns = {
        "group": [number for number, *_ in rows],
        "problem_id": [g.problem.id for _, g, *_ in rows],
        "source": [g.problem.source for _, g, *_ in rows],
        "sample": [sample for _, _, sample, _ in rows],
        "prompt": _lists([g.prompt for _, g, *_ in rows], np.int64),
        "tokens": _lists([c.tokens for *_, c in rows], np.int64),
        "logp": _lists([c.logp for *_, c in rows], np.float32),
        "logp_sampling": _lists([c.logp_sampling for *_, c in rows], np.float32),
        "finished": [c.finished for *_, c in rows],
        "response": [g.texts[sample] for _, g, sample, _ in rows],
        "reward": [g.rewards[sample].value for _, g, sample, _ in rows],
        "outcome": [g.rewards[sample].outcome for _, g, sample, _ in rows],
        "oldest_updates": [g.updates and g.updates[0] for _, g, *_ in rows],
        "newest_updates": [g.updates and g.updates[1] for _, g, *_ in rows],
    }
    return pa.table(columns, schema=SCHEMA)


def _lists(arrays: Sequence[NDArray[Any]], dtype: type) -> pa.Array:
    """A column of lists; not by way of Python's numbers, of which long responses have millions."""
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate([*arrays, np.empty(0, dtype)]).astype(dtype, copy=False))


def read_rollouts(path: Path) -> list[Rollout]:
    """The groups of a file. Their problems have an id and a source, no text: prompts are token ids.

    Raises ValueError if the file is missing, is no Parquet file, or lacks a column.
    """
    if not path.is_file():
        raise ValueError(f"rollouts={path} is no file.")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"rollouts={path} is no Parquet file: {str(error).splitlines()[0]}") from None
    for name in set(YOUNGER) - set(table.column_names):
        table = table.append_column(name, pa.nulls(table.num_rows, pa.int64()))
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing or not table.num_rows:
        what = f"has no column {', '.join(missing)}" if missing else "has no rows"
        raise ValueError(f"rollouts={path} {what}: it is no file of training rollouts.")
    return _groups(table.select(SCHEMA.names))


def _groups(table: pa.Table) -> list[Rollout]:
    lists = {name: _arrays(table[name]) for name in ("prompt", "tokens", "logp", "logp_sampling")}
    plain = {name: table[name].to_pylist() for name in table.column_names if name not in lists}
    groups = list[Rollout]()
    for _, part in groupby(range(table.num_rows), key=lambda row: plain["group"][row]):
        rows = list(part)
        first = rows[0]
        groups.append(
            Rollout(
                Problem(plain["problem_id"][first], "", source=plain["source"][first]),
                lists["prompt"][first],
                tuple(
                    Completion(lists["tokens"][i], lists["logp"][i], lists["logp_sampling"][i], plain["finished"][i])
                    for i in rows
                ),
                tuple(plain["response"][i] for i in rows),
                tuple(Reward(plain["reward"][i], plain["outcome"][i]) for i in rows),
                _updates(plain["oldest_updates"][first], plain["newest_updates"][first]),
            )
        )
    return groups


def _updates(oldest: int | None, newest: int | None) -> tuple[int, int] | None:
    return None if oldest is None or newest is None else (oldest, newest)


def _arrays(column: pa.ChunkedArray) -> list[NDArray[Any]]:
    lists = column.combine_chunks()
    values, ends = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    return [values[begin:end] for begin, end in pairwise(ends)]
