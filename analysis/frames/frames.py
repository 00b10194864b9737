"""All data on the runs of a study, as tidy frames. Tables and figures are functions of these frames alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.frames import run as typed_rows
from analysis.frames.digest import Digest
from analysis.frames.samples import Response, Stored

if TYPE_CHECKING:
    from analysis.frames.counts import Counts, ProblemCounts
    from analysis.frames.journals import Curves
    from rlvr.ledger.sweeps import Sweep


TextsOfProblems = dict[str, list[tuple[str, str]]]  # by problem, (response, outcome) of every sample
# First elements of the keys of `Frames.cache` for data read from the files of runs. A bundle stores all of them but
# TEXTS (frames/bundle.py).
HISTORY, DRAWN, OF_TEXTS, RESPONSES = "history", "drawn", "of texts", "responses"
TEXTS = "texts"
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
    curves: Curves
    judgements: Counts
    stored: Stored
    study: str = ""
    question: str = ""  # the study's question, as in its file at the last launch
    title: str = ""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    home: Path | None = None  # None: read from a bundle
    origin: str = "ledger"
    sweeps: tuple[Sweep, ...] = ()
    every_sample: bool = False
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
        return Digest(self.curves.digest())

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """run_id, step, name, value: everything that was logged."""
        return self.curves.long()

    def history(self, names: Collection[str]) -> pd.DataFrame:
        """`metrics` of these names alone, which takes a fraction of the time."""
        key = (HISTORY, tuple(sorted(names)))
        if key not in self.cache:
            self.cache[key] = self.curves.long(names)
        return self.cache[key]

    def thinned_history(self, names: Collection[str] | None = None) -> pd.DataFrame:
        """run_id, step, name, value of training, of all metrics or of these, thinned for drawing (`thinned`)."""
        key = (DRAWN, None if names is None else tuple(sorted(names)))
        if key not in self.cache:
            self.cache[key] = self.curves.thin(names)
        return self.cache[key]

    @cached_property
    def counts(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, n (judged samples), correct, errors (samples whose verifier failed)."""
        return self.judgements.frame

    def problem_counts(self, run_id: str, step: int, source: str) -> ProblemCounts | None:
        """Counts of an evaluation on a benchmark, by problem; None if its samples are not available."""
        return self.judgements.of(run_id, step, source)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """run_id, step, source, problem_id, sample, outcome, reward, num_tokens, finished, for the first and the last
        evaluation of each run (with `every_sample`: for all evaluations)."""
        return self.stored.samples(self._ids, every=self.every_sample)

    @cached_property
    def policy(self) -> pd.DataFrame:
        """run_id, step, arm, reward, probability, probability_old, advantage: the last policy of bandit runs."""
        return self.stored.policy(self._ids)

    def text_summary(
        self, name: str, run_id: str, step: int, source: str, summary: Callable[[TextsOfProblems], dict[str, float]]
    ) -> dict[str, float]:
        """`summary` of all responses to a benchmark in an evaluation; {} if the responses are not available.

        name: identifies the summary. The result is cached, so that a bundle stores it without the texts.
        """
        key = (OF_TEXTS, name, run_id, step, source)
        if key not in self.cache:
            of_evaluation = (TEXTS, run_id, step)
            if of_evaluation not in self.cache:
                self.cache[of_evaluation] = self.stored.texts(run_id, step)
            texts = self.cache[of_evaluation].get(source, {})
            self.cache[key] = summary(texts) if texts else {}
        return self.cache[key]

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """Samples, with their texts, of these problems (benchmark, id) in one evaluation."""
        key = (RESPONSES, run_id, step, tuple(sorted(problems)))
        if key not in self.cache:
            self.cache[key] = self.stored.responses(run_id, step, problems)
        return self.cache[key]

    @cached_property
    def _ids(self) -> list[str]:
        return [str(run_id) for run_id in self.runs["run_id"]]
