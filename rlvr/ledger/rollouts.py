"""Training rollouts on disk: one Parquet row per response, plain columns, nothing pickled."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import json
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger.samples import extras_of, turns_of, write_parquet
from rlvr.records import Completion, Conversation, Problem, Reward, Rollout

SCHEMA = pa.schema(
    [
        ("group", pa.int64()),  # number of the prompt in its step; the rows of a group are consecutive
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
        # Optimiser updates of the oldest and the newest weights that drew a token of the group; null: not known.
        ("oldest_updates", pa.int64()),
        ("newest_updates", pa.int64()),
        ("given", pa.list_(pa.bool_())),  # of each token, whether it is of a reply of the task; empty: none is
        ("turns", pa.string()),  # JSON: [role, text] of each turn; null: the response is no conversation
        ("extras", pa.string()),  # JSON: what the task measured beside the reward, by name; null: nothing
    ]
)
LATER = ("given", "turns", "extras")  # columns that older files lack


def write_rollouts(groups: Sequence[Rollout], path: Path) -> None:
    """Write groups, in order; the file appears only once it is complete."""
    write_parquet(_table(groups), path)


def to_bytes(groups: Sequence[Rollout]) -> bytes:
    """Groups, in order, as bytes to send to another process."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(_table(groups))
    return sink.getvalue().to_pybytes()


def rollouts_from_bytes(data: bytes) -> list[Rollout]:
    """The groups in bytes from `to_bytes`, as `read_rollouts` returns them."""
    with pa.ipc.open_stream(data) as stream:
        return _groups(stream.read_all())


def _table(groups: Sequence[Rollout]) -> pa.Table:
    rows = [
        (number, group, sample, group.completions[sample])
        for number, group in enumerate(groups)
        for sample in range(len(group.texts))
    ]
    columns = {
        "group": [number for number, *_ in rows],
        "problem_id": [group.problem.id for _, group, *_ in rows],
        "source": [group.problem.source for _, group, *_ in rows],
        "sample": [sample for _, _, sample, _ in rows],
        "prompt": _lists([group.prompt for _, group, *_ in rows], np.int64),
        "tokens": _lists([completion.tokens for *_, completion in rows], np.int64),
        "logp": _lists([completion.logp for *_, completion in rows], np.float32),
        "logp_sampling": _lists([completion.logp_sampling for *_, completion in rows], np.float32),
        "finished": [completion.finished for *_, completion in rows],
        "response": [group.texts[sample] for _, group, sample, _ in rows],
        "reward": [group.rewards[sample].value for _, group, sample, _ in rows],
        "outcome": [group.rewards[sample].outcome for _, group, sample, _ in rows],
        "oldest_updates": [group.updates and group.updates[0] for _, group, *_ in rows],
        "newest_updates": [group.updates and group.updates[1] for _, group, *_ in rows],
        "given": _lists([np.empty(0) if c.given is None else c.given for *_, c in rows], np.bool_),
        "turns": [text for group in groups for text in turns_of(group)],
        "extras": [text for group in groups for text in extras_of(group)],
    }
    return pa.table(columns, schema=SCHEMA)


def _lists(arrays: Sequence[NDArray[Any]], dtype: type) -> pa.Array:
    """A column of lists, built without Python numbers: long responses would need millions of them."""
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, np.concatenate([*arrays, np.empty(0, dtype)]).astype(dtype, copy=False))


def read_rollouts(path: Path) -> list[Rollout]:
    """The groups of a file. Their problems have an id and a source but no text: prompts are token ids.

    Raises ValueError if the file is missing, is no Parquet file, has no rows, or lacks a column.
    """
    if not path.is_file():
        raise ValueError(f"rollouts={path} is no file.")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"rollouts={path} is no Parquet file: {str(error).splitlines()[0]}") from None
    for name in LATER:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, SCHEMA.field(name).type))
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing or not table.num_rows:
        fault = f"has no column {', '.join(missing)}" if missing else "has no rows"
        raise ValueError(f"rollouts={path} {fault}: it is no file of training rollouts.")
    return _groups(table.select(SCHEMA.names))


def _groups(table: pa.Table) -> list[Rollout]:
    arrays = {name: _arrays(table[name]) for name in ("prompt", "tokens", "logp", "logp_sampling", "given")}
    plain = {name: table[name].to_pylist() for name in table.column_names if name not in arrays}
    groups = list[Rollout]()
    for _, rows_of_group in groupby(range(table.num_rows), key=lambda row: plain["group"][row]):
        rows = list(rows_of_group)
        first = rows[0]
        updates = plain["oldest_updates"][first], plain["newest_updates"][first]
        groups.append(
            Rollout(
                Problem(plain["problem_id"][first], "", source=plain["source"][first]),
                arrays["prompt"][first],
                tuple(
                    Completion(
                        *(arrays[name][i] for name in ("tokens", "logp", "logp_sampling")),
                        finished=plain["finished"][i],
                        given=arrays["given"][i] if len(arrays["given"][i]) else None,
                    )
                    for i in rows
                ),
                tuple(plain["response"][i] for i in rows),
                tuple(
                    Reward(plain["reward"][i], plain["outcome"][i], json.loads(plain["extras"][i] or "{}"))
                    for i in rows
                ),
                None if None in updates else updates,
                tuple(_conversation(plain["turns"][i]) for i in rows) if plain["turns"][first] else (),
            )
        )
    return groups


def _conversation(text: str) -> Conversation:
    return tuple((role, words) for role, words in json.loads(text))


def _arrays(column: pa.ChunkedArray) -> list[NDArray[Any]]:
    lists = column.combine_chunks()
    values, offsets = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    return [values[begin:end] for begin, end in pairwise(offsets)]
