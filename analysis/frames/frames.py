"""All data on the runs of a study, as tidy frames. Tables and figures are functions of these frames alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from analysis.frames import run as typed_rows
from analysis.frames.counts import Counts, ProblemCounts
from analysis.frames.digest import Digest
from analysis.frames.samples import Response, StoredSamples
from analysis.frames.tables import METRICS, USUAL, Tables
from analysis.frames.texts import of_texts
from analysis.frames.thin import CACHED_METRICS

if TYPE_CHECKING:
    from rlvr.ledger.sweeps import Sweep


CHOICES = ("loss", "divergence", "advantage", "task", "model")
# Config keys in which the runs of one table must agree: problems, starting policy, length, and evaluation.
SETTING = ("config.task.", "config.model.", "config.evaluation.", "config.steps")


@dataclass(frozen=True, eq=False)
class Frames:
    """All data on the runs of a study. Large data is read on first access.

    runs: one row per planned run, with its `state` (rlvr/ledger/cause.py) and `config.<key>`; `reference` marks GRPO
    runs of other studies in the same setting, which were added for comparison.
    """

    runs: pd.DataFrame
    tables: Tables
    stored: StoredSamples
    study: str = ""
    question: str = ""  # the study's question, as in its file at the last launch
    title: str = ""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    home: Path | None = None  # None: read from a bundle
    origin: str = "ledger"
    sweeps: tuple[Sweep, ...] = ()
    studies: tuple[Frames, ...] = ()  # where bundles of several studies are shown together: the frames of each study
    tuned: Frames | None = None  # the tuning runs, by which knobs of these runs were chosen (`tune=`)
    cache: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)  # results that tables and figures share

    @cached_property
    def rows(self) -> list[typed_rows.RunRow]:
        """The rows of `runs`, typed."""
        return typed_rows.rows(self.runs)

    def newest(self, key: str) -> Any:
        """The value under `key`, which may be empty, in the newest launch that recorded one; None if no launch did."""
        return next((sweep.info[key] for sweep in reversed(self.sweeps) if key in sweep.info), None)

    @cached_property
    def seeds(self) -> dict[str, int]:
        """By run id, its seed."""
        return {run.run_id: run.seed for run in self.rows}

    @cached_property
    def digest(self) -> Digest:
        """By run, name and step: what evaluations logged, and means and sums of training up to them."""
        return Digest(self.tables["digest"].to_pandas())

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """run_id, step, name, value: everything that was logged. Of a bundle: evaluations, and curves of training."""
        return _curves(self.tables[METRICS]).astype({"run_id": str, "name": str})

    def thinned_history(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of training, of all metrics or of these, thinned for drawing (`thinned`)."""
        if names is None:
            return self._drawn
        frame = self._usual if set(names) <= set(CACHED_METRICS) else self._drawn
        return frame[frame["name"].isin(list(names))].reset_index(drop=True)

    @cached_property
    def _drawn(self) -> pd.DataFrame:
        return _curves(self.tables["drawn"])

    @cached_property
    def _usual(self) -> pd.DataFrame:
        return _curves(self.tables[USUAL])

    @cached_property
    def judgements(self) -> Counts:
        """The judged samples of every evaluation."""
        return Counts(self.tables["counts"])

    @cached_property
    def counts(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, n (judged samples), correct, errors (samples whose verifier failed)."""
        return self.judgements.table.to_pandas().astype({"run_id": str, "source": str, "problem_id": str})

    def problem_counts(self, run_id: str, step: int, source: str) -> ProblemCounts | None:
        """Counts of an evaluation on a benchmark, by problem; None if its samples are not available."""
        return self.judgements.of(run_id, step, source)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, sample, outcome, reward, num_tokens, finished, for the first and the last
        evaluation of each run."""
        return self.stored.frame(self.runs["run_id"])

    @cached_property
    def policy(self) -> pd.DataFrame:
        """run_id, step, arm, reward, probability, probability_old, advantage: the last policy of bandit runs."""
        return self.tables["policy"].to_pandas().astype({"run_id": str})

    def text_summary(self, name: str, run_id: str, step: int, source: str) -> dict[str, float]:
        """The numbers of this name (`of_texts`) on the responses to a benchmark in an evaluation; {} if they are not
        available."""
        if not self.stored.complete:
            return self._text_summaries.get((name, run_id, step, source), {})
        texts = self.stored.texts(run_id, step).get(source)
        return of_texts(name, texts) if texts else {}

    @cached_property
    def _text_summaries(self) -> dict[tuple[str, str, int, str], dict[str, float]]:
        """By name, run, step and benchmark, the numbers in the table `texts`."""
        numbers: dict[tuple[str, str, int, str], dict[str, float]] = {}
        for row in self.tables["texts"].to_pylist():
            numbers.setdefault((row["summary"], row["run_id"], row["step"], row["source"]), {})[row["key"]] = row[
                "value"
            ]
        return numbers

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """Samples, with their texts, of these problems (benchmark, id) in one evaluation."""
        return self.stored.responses(run_id, step, problems)


def _curves(table: pa.Table) -> pd.DataFrame:
    """run_id, step, name, value, by run, metric and step."""
    frame = table.select(["run_id", "step", "name", "value"]).to_pandas()
    frame = frame.astype({"run_id": "category", "name": "category", "value": float})
    return frame.sort_values(["run_id", "name", "step"], kind="stable", ignore_index=True)
