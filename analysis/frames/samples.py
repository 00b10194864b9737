"""Reads what runs keep in `samples/`: evaluation samples and, for bandits, the whole policy. Text only on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from analysis.frames.frame import Frame
from rlvr.ledger import layout

KEPT = ("source", "problem_id", "sample", "outcome", "reward", "num_tokens", "finished")  # not the response
POLICY = ("arm", "reward", "probability", "probability_old", "advantage")
COUNTS = ("run_id", "step", "source", "problem_id", "n", "correct", "errors")


@dataclass(frozen=True)
class Samples:
    samples: Frame
    counts: Frame
    notes: tuple[str, ...]


def read(home: Path, run_ids: Iterable[str], *, every: bool = False) -> Samples:
    """Samples of the first and the last evaluation of each run (`every`: of all), and their counts per problem."""
    parts, notes = [], []
    for run_id in run_ids:
        files = layout.evaluations(layout.run(home, run_id))
        for file in files if every else dict.fromkeys([*files[:1], *files[-1:]]):
            part = pq.read_table(file, columns=_present(file, KEPT)).to_pandas()
            part.insert(0, "step", layout.step_of(file))
            part.insert(0, "run_id", run_id)
            parts.append(part)
    if not parts:
        return Samples(pd.DataFrame(columns=["run_id", "step", *KEPT]), pd.DataFrame(columns=list(COUNTS)), ())
    frame = pd.concat(parts, ignore_index=True)
    found = counts(frame)
    if errors := int(found["errors"].sum()):
        notes.append(f"{errors} evaluation sample(s) whose verifier failed are left out of every average and counted.")
    return Samples(frame, found, tuple(notes))


def read_responses(home: Path, run_ids: Iterable[str]) -> Frame:
    """run_id, step, source, problem_id, sample, response: the text of the first and the last evaluation of each run."""
    columns = ["source", "problem_id", "sample", "response"]
    parts = []
    for run_id in run_ids:
        files = layout.evaluations(layout.run(home, run_id))
        for file in dict.fromkeys([*files[:1], *files[-1:]]):
            part = pq.read_table(file, columns=_present(file, columns)).to_pandas()
            part.insert(0, "step", layout.step_of(file))
            part.insert(0, "run_id", run_id)
            parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *columns])


def counts(samples: Frame) -> Frame:
    """Per (run, step, benchmark, problem): judged samples n, correct among them, samples whose verifier failed."""
    keys = ["run_id", "step", "source", "problem_id"]
    marked = samples[keys].assign(
        n=(samples["outcome"] != "error").astype(int),
        correct=(samples["outcome"] == "correct").astype(int),
        errors=(samples["outcome"] == "error").astype(int),
    )
    return marked.groupby(keys, sort=True, observed=True, as_index=False)[["n", "correct", "errors"]].sum()


def read_policy(home: Path, run_ids: Sequence[str]) -> Frame:
    """The last stored policy of each bandit run, one row per arm."""
    parts = []
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
