"""Reads what runs keep in `samples/`: evaluation samples and, for bandits, the whole policy. Text only on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from rlvr.ledger import layout

KEPT = ("source", "problem_id", "sample", "outcome", "reward", "num_tokens", "finished")  # not the response
POLICY = ("arm", "reward", "probability", "probability_old", "advantage")


def read(home: Path, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
    """Samples of the first and the last evaluation of each run (`every`: of all): run_id, step, and KEPT."""
    parts: list[pd.DataFrame] = []
    for run_id in run_ids:
        files = layout.evaluations(layout.run(home, run_id))
        for file in files if every else dict.fromkeys([*files[:1], *files[-1:]]):
            part = pq.read_table(file, columns=_present(file, KEPT)).to_pandas()
            part.insert(0, "step", layout.step_of(file))
            part.insert(0, "run_id", run_id)
            parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *KEPT])


def read_texts(home: Path, run_id: str, step: int) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """By benchmark and problem, (response, outcome) of every sample of one evaluation; {} if none is at hand."""
    file = layout.evaluation(layout.run(home, run_id), step)
    found: dict[str, dict[str, list[tuple[str, str]]]] = {}
    if file.exists():
        columns = ["source", "problem_id", "response", "outcome"]
        for source, problem, response, outcome in zip(
            *pq.read_table(file, columns=columns).to_pydict().values(), strict=True
        ):
            found.setdefault(source, {}).setdefault(problem, []).append((response, outcome))
    return found


def read_policy(home: Path, run_ids: Sequence[str]) -> pd.DataFrame:
    """The last stored policy of each bandit run, one row per arm."""
    parts: list[pd.DataFrame] = []
    for run_id in run_ids:
        files = layout.policies(layout.run(home, run_id))
        if files:
            part = pq.read_table(files[-1], columns=list(POLICY)).to_pandas()
            part.insert(0, "step", layout.step_of(files[-1]))
            part.insert(0, "run_id", run_id)
            parts.append(part.sort_values("arm"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *POLICY])


def _present(file: Path, columns: Sequence[str]) -> list[str]:
    names = set(pq.read_schema(file).names)
    return [c for c in columns if c in names]
