"""The files that evaluations stored, read on request: samples, their texts and, for bandits, the complete policy."""

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

SAMPLE_COLUMNS = ("source", "problem_id", "sample", "outcome", "reward", "num_tokens", "finished")  # all but the texts
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
    """The samples and policies that evaluations stored, whatever their source."""

    def samples(self, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
        """run_id, step and SAMPLE_COLUMNS, of the first and the last evaluation of each run (`every`: of all)."""
        ...

    def policy(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """run_id, step and POLICY: the last stored policy of each bandit run, one row per arm."""
        ...

    def texts(self, run_id: str, step: int) -> Texts:
        """All responses of one evaluation; {} if they are not available."""
        ...

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """Samples of these problems (benchmark, id), in the order of the file; [] if they are not available."""
        ...


@dataclass(frozen=True)
class SampleFiles:
    """The files under `runs/` of a home."""

    home: Path

    def samples(self, run_ids: Iterable[str], *, every: bool = False) -> pd.DataFrame:
        """See Stored."""
        parts: list[pd.DataFrame] = []
        for run_id in run_ids:
            files = layout.evaluations(layout.run(self.home, run_id))
            for file in files if every else dict.fromkeys([*files[:1], *files[-1:]]):
                table = read_table(file, SAMPLE_COLUMNS)
                if table is None:
                    continue
                part = table.to_pandas()
                part.insert(0, "step", layout.step_of(file))
                part.insert(0, "run_id", run_id)
                parts.append(part)
        return (
            pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "step", *SAMPLE_COLUMNS])
        )

    def policy(self, run_ids: Sequence[str]) -> pd.DataFrame:
        """See Stored."""
        parts: list[pd.DataFrame] = []
        for run_id in run_ids:
            files = layout.policies(layout.run(self.home, run_id))
            table = read_table(files[-1], POLICY) if files else None
            if table is not None:  # an older file is no substitute: it is not the last policy
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
        columns = ("source", "problem_id", "sample", "response", "outcome", "num_tokens")
        table = read_table(file, columns, optional=("prompt",))
        if table is None:
            return []
        ids = pc.field("problem_id").isin(sorted({problem for _, problem in problems}))
        rows = table.filter(ids).to_pylist()
        chosen = set(problems)
        return [Response(**{"prompt": "", **row}) for row in rows if (row["source"], row["problem_id"]) in chosen]


def damaged_policies(home: Path, run_ids: Sequence[str]) -> list[Path]:
    """The policy files that `SampleFiles.policy` leaves out because they cannot be read."""
    newest = [files[-1] for run_id in run_ids if (files := layout.policies(layout.run(home, run_id)))]
    return [file for file in newest if read_table(file, POLICY) is None]


def read_table(file: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> pa.Table | None:
    """The columns, and those of `optional` that the file has; None for a file that is missing, truncated or damaged.

    Pages are compared with their checksums, which files of earlier versions do not have. The names and types of columns
    have none: a file that lacks a column, or holds bytes in place of text, is damaged.
    """
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            schema = parquet.schema_arrow
            present = [c for c in (*columns, *optional) if c in schema.names]
            if not set(columns) <= set(present) or any(pa.types.is_binary(schema.field(c).type) for c in present):
                return None
            return parquet.read(present, use_threads=False)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return None


def left_out(home: Path, file: Path) -> str:
    """The note of a report on a damaged file."""
    return (
        f"{file.relative_to(home)} is damaged and left out. The metrics of that step in metrics.jsonl are used; put "
        "the file back if there is a copy, else delete it."
    )
