"""What evaluations leave in `runs/<run_id>/samples/`: every sample, and of bandits the whole policy."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger import layout
from rlvr.ledger.files import whole
from rlvr.records import Rollout


def write_samples(rollouts: Sequence[Rollout], run_dir: Path, *, step: int) -> None:
    """One Parquet row per sample."""
    rows = [{"step": step, **row} for group in rollouts for row in sample_rows(group)]
    write_parquet(pa.Table.from_pylist(rows), layout.evaluation(run_dir, step))


def sample_rows(group: Rollout, first: int = 0) -> list[dict[str, Any]]:
    """What is kept of each sample of a group. first: the number of the first one."""
    return [
        {
            "source": group.problem.source,
            "problem_id": group.problem.id,
            "prompt": group.problem.prompt,
            "sample": first + i,
            "response": text,
            "outcome": reward.outcome,
            "reward": reward.value,
            "num_tokens": len(completion.tokens),
            "finished": completion.finished,
        }
        for i, (completion, text, reward) in enumerate(zip(group.completions, group.texts, group.rewards, strict=True))
    ]


def write_policy(columns: Mapping[str, NDArray[Any]], run_dir: Path, *, step: int) -> None:
    """A bandit's policy, one Parquet row per arm, beside the one that its last step sampled from: that of the step
    before, where it was evaluated, else that of step 0.
    """
    before = [path for path in (layout.policy(run_dir, max(step - 1, 0)), layout.policy(run_dir, 0)) if path.exists()]
    old = pq.read_table(before[0])["probability"].to_numpy() if before else columns["probability"]
    write_parquet(pa.table({**columns, "probability_old": old}), layout.policy(run_dir, step))


def write_parquet(table: pa.Table, path: Path) -> None:
    """The file appears only once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as aside:
        pq.write_table(table, aside, compression="zstd")
