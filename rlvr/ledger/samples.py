"""The files of evaluations in `runs/<run_id>/samples/`: every sample, and for bandits the whole policy."""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rlvr.ledger import layout
from rlvr.ledger.files import write_atomically
from rlvr.records import Problem, Rollout


class _NoPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if "pandas" not in sys.modules:
    # At its first array pyarrow looks for pandas, whose import would take half a second of every run. To convert from
    # or to pandas, it looks again.
    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]
    pa.array([])
    sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


def write_samples(
    rollouts: Sequence[Rollout], run_dir: Path, *, step: int, right_answer: Callable[[Problem], str]
) -> None:
    """Write the samples of an evaluation, one Parquet row per sample, with what would have been right."""
    rows: list[dict[str, Any]] = []
    for group in rollouts:
        answer = right_answer(group.problem)
        rows += [{"step": step, **row, "right_answer": answer} for row in sample_rows(group)]
    table, turns = pa.Table.from_pylist(rows), [text for group in rollouts for text in turns_of(group)]
    if any(turns):
        table = table.append_column("turns", pa.array(turns, pa.string()))
    if any(extras := [text for group in rollouts for text in extras_of(group)]):
        table = table.append_column("extras", pa.array(extras, pa.string()))
    write_parquet(table, layout.evaluation(run_dir, step))


def extras_of(group: Rollout) -> list[str | None]:
    """Of each sample what its task measured beside the reward, as JSON; None for nothing."""
    return [json.dumps(dict(reward.extras)) if reward.extras else None for reward in group.rewards]


def turns_of(group: Rollout) -> list[str | None]:
    """Of each sample the [role, text] of its turns, as JSON; None if it is no conversation."""
    turns = group.turns or [()] * len(group.texts)
    return [json.dumps(conversation, ensure_ascii=False) if conversation else None for conversation in turns]


def sample_rows(group: Rollout, first: int = 0) -> list[dict[str, Any]]:
    """One row per sample of a group. first: number of the first sample."""
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
    """Write a bandit's policy, one Parquet row per arm, and with it the policy that its last step sampled from.

    That is the policy of the previous step, if it was evaluated, else that of step 0.
    """
    candidates = (layout.policy(run_dir, max(step - 1, 0)), layout.policy(run_dir, 0))
    previous = next((path for path in candidates if path.exists()), None)
    old = columns["probability"] if previous is None else pq.read_table(previous)["probability"].to_numpy()
    write_parquet(pa.table({**columns, "probability_old": old}), layout.policy(run_dir, step))


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table, with checksums of its pages. The file appears only once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as aside:
        pq.write_table(table, aside, compression="zstd", write_page_checksum=True)
