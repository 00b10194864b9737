"""What evaluations stored beside their counts: samples, texts and, for bandits, the whole policy. Read on request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlvr.ledger import layout

KEPT = ("source", "problem_id", "sample", "outcome", "reward", "num_tokens", "finished")  # not the response
POLICY = ("arm", "reward", "probability", "probability_old", "advantage")
Texts = dict[str, dict[str, list[tuple[str, str]]]]  # by benchmark and problem, (response, outcome) of every sample


@dataclass(frozen=True)
class Response:
    """One sample with its text. prompt: "" where the run did not store it."""

    source: str
    problem_id: str
    prompt: str
    sample: int
    response: str
    outcome: str
    num_tokens: int


class Stored(Protocol):
    """What evaluations stored, wherever it is kept."""

    def samples(self, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
        """run_id, step and KEPT, of the first and the last evaluation of each run (`every`: of all)."""
        ...

    def policy(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """run_id, step and POLICY: the last stored policy of each bandit run, one row per arm."""
        ...

    def texts(self, run_id: str, step: int) -> Texts:
        """Of one evaluation; {} where they are not at hand."""
        ...

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """Samples of these problems (benchmark, id), in the order of the file; [] where they are not at hand."""
        ...


@dataclass(frozen=True)
class SampleFiles:
    """Those under `runs/` of a home."""

    home: Path

    def samples(self, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
        """See Stored."""
        parts: list[pd.DataFrame] = []
        for run_id in run_ids:
            files = layout.evaluations(layout.run(self.home, run_id))
            for file in files if every else dict.fromkeys([*files[:1], *files[-1:]]):
                table = read_table(file, KEPT)
                if table is None:
                    continue
                part = table.to_pandas()
                part.insert(0, "step", layout.step_of(file))
                part.insert(0, "run_id", run_id)
                parts.append(part)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *KEPT])

    def policy(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """See Stored."""
        parts: list[pd.DataFrame] = []
        for run_id in run_ids:
            files = layout.policies(layout.run(self.home, run_id))
            table = read_table(files[-1], POLICY) if files else None
            if table is not None:  # an older one is not its last: then it has none
                part = table.to_pandas()
                part.insert(0, "step", layout.step_of(files[-1]))
                part.insert(0, "run_id", run_id)
                parts.append(part.sort_values("arm"))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *POLICY])

    def texts(self, run_id: str, step: int) -> Texts:
        """See Stored."""
        file = layout.evaluation(layout.run(self.home, run_id), step)
        texts: Texts = {}
        table = read_table(file, ("source", "problem_id", "response", "outcome"))
        if table is not None:
            for source, problem, response, outcome in zip(*table.to_pydict().values(), strict=True):
                texts.setdefault(source, {}).setdefault(problem, []).append((response, outcome))
        return texts

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """See Stored."""
        file = layout.evaluation(layout.run(self.home, run_id), step)
        table = read_table(file, ("source", "problem_id", "prompt", "sample", "response", "outcome", "num_tokens"))
        if table is None:
            return []
        ids = pc.field("problem_id").isin(sorted({problem for _, problem in problems}))
        rows = table.filter(ids).to_pylist()
        chosen = set(problems)
        return [Response(**{"prompt": "", **row}) for row in rows if (row["source"], row["problem_id"]) in chosen]


def damaged_policies(home: Path, run_ids: Sequence[str]) -> list[Path]:
    """Those that `SampleFiles.policy` leaves out."""
    newest = [files[-1] for run_id in run_ids if (files := layout.policies(layout.run(home, run_id)))]
    return [file for file in newest if read_table(file, POLICY) is None]


def read_table(file: Path, columns: Sequence[str]) -> pa.Table | None:
    """Those of these columns that there are; None of a file that is missing, was cut or is damaged."""
    try:
        with pq.ParquetFile(file) as parquet:
            return parquet.read([c for c in columns if c in parquet.schema_arrow.names], use_threads=False)
    except (OSError, pa.ArrowException):
        return None


def left_out(home: Path, file: Path) -> str:
    """What a report says of a damaged file."""
    return (
        f"{file.relative_to(home)} is damaged and left out. What metrics.jsonl says of that step stands; put the file "
        "back if there is a copy, else delete it."
    )
