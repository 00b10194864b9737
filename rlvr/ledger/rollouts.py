"""Training rollouts on disk: one Parquet row per response, plain columns, nothing pickled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
    ]
)


def write_rollouts(groups: Sequence[Rollout], path: Path) -> None:
    """Write whole groups, in order; the file appears only once it is complete."""
    rows = [
        {
            "group": number,
            "problem_id": g.problem.id,
            "source": g.problem.source,
            "sample": sample,
            "prompt": g.prompt,
            "tokens": c.tokens,
            "logp": c.logp,
            "logp_sampling": c.logp_sampling,
            "finished": c.finished,
            "response": text,
            "reward": r.value,
            "outcome": r.outcome,
        }
        for number, g in enumerate(groups)
        for sample, (c, text, r) in enumerate(zip(g.completions, g.texts, g.rewards, strict=True))
    ]
    write_parquet(pa.Table.from_pylist(rows, schema=SCHEMA), path)


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
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing or not table.num_rows:
        what = f"has no column {', '.join(missing)}" if missing else "has no rows"
        raise ValueError(f"rollouts={path} {what}: it is no file of training rollouts.")
    rows = table.select(SCHEMA.names).to_pylist()
    return [_group(list(part)) for _, part in groupby(rows, key=lambda row: row["group"])]


def _group(rows: Sequence[dict[str, object]]) -> Rollout:
    first = rows[0]
    completions = tuple(
        Completion(
            np.asarray(r["tokens"], np.int64),
            np.asarray(r["logp"], np.float32),
            np.asarray(r["logp_sampling"], np.float32),
            bool(r["finished"]),
        )
        for r in rows
    )
    return Rollout(
        Problem(str(first["problem_id"]), "", source=str(first["source"])),
        np.asarray(first["prompt"], np.int64),
        completions,
        tuple(str(r["response"]) for r in rows),
        tuple(Reward(float(r["reward"]), r["outcome"]) for r in rows),  # type: ignore[arg-type]
    )
