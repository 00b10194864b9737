"""Everything known about the runs of a study, as tidy frames. Tables and figures are functions of these alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.frames import run as typed_rows
from analysis.frames import samples as sample_files
from analysis.frames.digest import Digest

if TYPE_CHECKING:
    from analysis.frames.counts import Counts, Judged
    from analysis.frames.journals import Curves
    from rlvr.ledger.sweeps import Sweep


CHOICES = ("loss", "divergence", "advantage", "task", "model")
# What decides whether two runs can stand in one table: problems, starting policy, length, and how they are judged.
SETTING = ("config.task.", "config.model.", "config.evaluation.", "config.steps")


@dataclass(frozen=True, eq=False)
class Frames:
    """Everything known about the runs of a study. What is large is read when it is asked for.

    runs: one row per planned run, with its `state` (rlvr/ledger/cause.py) and `config.<key>`; `reference` marks GRPO
    runs of other studies in the same setting, brought in for comparison.
    """

    runs: pd.DataFrame
    curves: Curves
    judgements: Counts
    study: str = ""
    question: str = ""  # of the study, as its file asked it when it was last launched
    title: str = ""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    home: Path = Path()
    origin: str = "ledger"
    sweeps: tuple[Sweep, ...] = ()
    every_sample: bool = False
    cache: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)  # of what tables and figures both need

    @cached_property
    def rows(self) -> list[typed_rows.Run]:
        """The rows of `runs`, typed."""
        return typed_rows.rows(self.runs)

    @cached_property
    def digest(self) -> Digest:
        """What evaluations logged, and means and sums of training up to them, by run, name and step."""
        return Digest(self.curves.digest())

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """run_id, step, name, value: everything that was logged."""
        return self.curves.long()

    def history(self, names: Collection[str]) -> pd.DataFrame:
        """As `metrics`, of these names: a fraction of the time."""
        return self.curves.long(names)

    @cached_property
    def counts(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, n (judged samples), correct, errors (samples whose verifier failed)."""
        return self.judgements.frame

    def judged(self, run_id: str, step: int, source: str) -> Judged | None:
        """Counts of an evaluation, by problem; None where its samples are not at hand."""
        return self.judgements.of(run_id, step, source)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, sample, outcome, reward, num_tokens, finished: of each run's first and last
        evaluation (`every_sample`: of all)."""
        return sample_files.read(self.home, self._ids, every=self.every_sample)

    @cached_property
    def policy(self) -> pd.DataFrame:
        """run_id, step, arm, reward, probability, probability_old, advantage: the last policy of bandit runs."""
        return sample_files.read_policy(self.home, self._ids)

    def texts(self, run_id: str, step: int, source: str) -> dict[str, list[tuple[str, str]]]:
        """(response, outcome) of every sample of an evaluation, by problem; {} where they are not at hand."""
        key = ("texts", run_id, step)
        if key not in self.cache:
            self.cache[key] = sample_files.read_texts(self.home, run_id, step)
        return self.cache[key].get(source, {})

    @cached_property
    def _ids(self) -> list[str]:
        return [str(run_id) for run_id in self.runs["run_id"]]
