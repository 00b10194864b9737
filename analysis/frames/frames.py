"""All data on the runs of a study, as tidy frames. Tables and figures are functions of these frames alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import pandas as pd
import pyarrow as pa

from analysis.frames.counts import Counts, ProblemCounts
from analysis.frames.digest import Digest
from analysis.frames.samples import StoredSamples, of_texts
from analysis.frames.tables import METRICS, Tables, with_names

if TYPE_CHECKING:
    from rlvr.ledger.sweeps import Sweep

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

IMPORTED = "imported"  # the study of samples of other trainers
CHOICES = ("loss", "divergence", "advantage", "task", "model")
# Config keys in which the runs of one table must agree: problems, starting policy, length, and evaluation.
SETTING = ("config.task.", "config.model.", "config.evaluation.", "config.steps")


# --- typed rows of the frame


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, in their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame, each by column name."""
    return cast(list[dict[str, Any]], frame.to_dict("records"))


CONFIG = "config."
# The columns of the frame whose values are those of the typed row.
_AS_THEY_ARE = (
    *("run_id", "group_id", "name", "study", "sweep_id", "state", "loss", "divergence", "advantage", "task"),
    *("command", "eta", "beta"),
)
REPETITION = ":again"  # suffix of the group id of runs that repeat an arm with other seeds, as its noise floor


@dataclass(frozen=True, eq=False)
class RunRow:
    """One planned run.

    typed: its overrides. command: the command that launched it. config: dotted key to plain value, known values only.
    borrowed: added from another study, for comparison.
    """

    run_id: str
    group_id: str
    name: str
    study: str
    sweep_id: str
    state: str
    loss: str
    divergence: str
    advantage: str
    task: str
    command: str
    eta: float
    beta: float
    seed: int
    typed: tuple[str, ...]
    config: Mapping[str, Any]
    borrowed: bool
    own_gpus: bool

    @property
    def again(self) -> bool:
        """Whether the run repeats an arm as its noise floor. It does not count as a seed of that arm."""
        return self.group_id.endswith(REPETITION)

    def knob(self, key: str) -> Any:
        """The value of a dotted config key, or the chosen option of a config group; None if it is not known."""
        return self.config.get(f"choices.{key}", self.config.get(key))


def rows(runs: pd.DataFrame) -> list[RunRow]:
    """The typed rows of a frame `runs`."""
    columns = [c for c in runs.columns if str(c).startswith(CONFIG)]
    return [
        RunRow(
            **{name: row[name] for name in _AS_THEY_ARE},
            seed=0 if math.isnan(row["seed"]) else int(row["seed"]),
            typed=tuple(row["typed"]),
            config={str(c).removeprefix(CONFIG): row[c] for c in columns if _known(row[c])},
            borrowed=bool(row["reference"]),
            own_gpus=bool(row["own_gpus"]),
        )
        for row in records(runs)
    ]


def check_seeds(runs: Iterable[RunRow]) -> None:
    """Raises LookupError, with their names, for two runs of one arm with one seed: it is not known which one counts."""
    first: dict[tuple[str, int], RunRow] = {}
    for run in runs:
        other = first.setdefault((run.group_id, run.seed), run)
        if other is not run and run.group_id:  # "": the arm of the run is not known
            raise LookupError(
                f"{other.name} ({other.run_id}) and {run.name} ({run.run_id}) are both of seed {run.seed} of one arm. "
                "Leave one out; if they are imports of two runs, import each with its own --seed."
            )


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


# --- all data


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
    alpha: float = 0.05  # the chance of an error that a family of differences, or a claim, may have
    mixed_code: bool = False  # whether runs with different code are averaged all the same (`--mixed-code`)
    studies: tuple[Frames, ...] = ()  # where bundles of several studies are shown together: the frames of each study
    tuned: Frames | None = None  # the tuning runs, by which knobs of these runs were chosen (`tune=`)
    cache: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)  # results that tables and figures share

    @cached_property
    def rows(self) -> list[RunRow]:
        """The rows of `runs`, typed."""
        return rows(self.runs)

    def newest(self, key: str) -> Any:
        """The value under `key`, which may be empty, in the newest launch that recorded one; None if no launch did."""
        return next((sweep.info[key] for sweep in reversed(self.sweeps) if key in sweep.info), None)

    @property
    def swept(self) -> dict[str, list[str]]:
        """The knobs that the sweeps varied, except the seed, with their values as typed, in their order."""
        values_of: dict[str, list[str]] = {}
        for sweep in self.sweeps:
            for key, values in (sweep.info.get("swept") or {}).items():
                values_of.setdefault(key, []).extend(v for v in values if v not in values_of[key])
        return {key: values for key, values in values_of.items() if key != "seed"}

    @property
    def baseline(self) -> str:
        """The selector of the arm that the study compares others to; "" if it names none. Imports have no study: their
        baseline is the one that was given first."""
        imported = next((run.typed for run in self.rows[:1] if run.study == IMPORTED), ())
        is_selector = all(re.fullmatch(r"""[^\s=]+=[^\s,'"[\]{}]+""", knob) for knob in imported)  # it's: a name alone
        return str(self.newest("baseline") or (" ".join(imported) if is_selector else ""))

    @property
    def claims(self) -> list[Mapping[str, Any]]:
        """The claims of the study, as in its file at the last launch."""
        return list(self.newest("claims") or [])

    @property
    def stopping_rule(self) -> Mapping[str, Any]:
        """The stopping rule, with its looks, of the newest sweep that has one (`until=`); {} if none has."""
        return self.newest("until") or {}

    @property
    def next_look(self) -> str:
        """`look 2 of 5 comes at 6 seeds` while runs of a stopping rule go on; "" otherwise."""
        rule, going_on = self.stopping_rule, set(self.runs["state"]) & {"running", "queued"}
        taken = len(rule.get("looks", ()))
        if not going_on or taken >= len(rule.get("seeds", ())):
            return ""
        return f"look {taken + 1} of at most {len(rule['seeds'])} comes at {rule['seeds'][taken]} seeds"

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
        table = self.tables["drawn"]
        return _curves(table if names is None else with_names(table, names))

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
        numbers: dict[tuple[str, str, int, str], dict[str, float]] = {}
        for row in self.tables["texts"].to_pylist():
            numbers.setdefault((row["summary"], row["run_id"], row["step"], row["source"]), {})[row["key"]] = row[
                "value"
            ]
        return numbers


def remembered(compute: Callable[Concatenate[Frames, P], R]) -> Callable[Concatenate[Frames, P], R]:
    """A function that computes each of its results once for the same frames. Its other arguments are hashable."""

    @wraps(compute)
    def result(frames: Frames, *arguments: P.args, **named: P.kwargs) -> R:
        key = (compute, *arguments, *named.items())
        if key not in frames.cache:
            frames.cache[key] = compute(frames, *arguments, **named)
        return frames.cache[key]

    return result


def _curves(table: pa.Table) -> pd.DataFrame:
    """run_id, step, name, value, by run, metric and step."""
    frame = table.select(["run_id", "step", "name", "value"]).to_pandas()
    frame = frame.astype({"run_id": "category", "name": "category", "value": float})
    return frame.sort_values(["run_id", "name", "step"], kind="stable", ignore_index=True)
