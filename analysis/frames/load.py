"""Tidy frames of a study: runs, metrics, evaluation counts. Tables and figures are functions of these alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.frames import samples as sample_files
from analysis.frames.frame import Frame
from analysis.frames.runs import NO_STUDY, RunRecord, read_metrics, read_runs, read_sweeps
from rlvr.ledger import layout
from rlvr.ledger.sweeps import Sweep
from rlvr.ledger.tags import as_value

Source = Literal["ledger", "mlflow"]

CHOICES = ("loss", "divergence", "advantage", "task", "model")
# What decides whether two runs can stand in one table: problems, starting policy, length, and how they are judged.
SETTING = ("config.task.", "config.model.", "config.evaluation.", "config.steps")


@dataclass(frozen=True, eq=False)
class Frames:
    """Everything known about the runs of a study.

    runs: one row per planned run, with its `state` (rlvr/ledger/cause.py) and `config.<key>`; `reference` marks GRPO
      runs of other studies in the same setting, brought in for comparison.
    metrics: run_id, step, name, value.
    samples: run_id, step, source, problem_id, sample, outcome, reward, num_tokens, finished.
    counts: run_id, step, source, problem_id, n (judged samples), correct, errors (samples whose verifier failed).
    policy: run_id, step, arm, word, reward, probability, probability_old, advantage (bandit runs).
    """

    runs: Frame
    metrics: Frame
    samples: Frame
    counts: Frame
    policy: Frame
    study: str = ""
    question: str = ""  # of the study, as its file asked it when it was last launched
    title: str = ""
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    home: Path | None = None
    origin: str = "ledger"
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)  # of what tables and figures both need

    @cached_property
    def evaluations(self) -> Frame:
        """The rows of `metrics` that an evaluation logged."""
        return self.metrics[self.metrics["name"].str.startswith("evaluation/")]

    @cached_property
    def responses(self) -> Frame:
        """Texts of the first and last evaluation: run_id, step, source, problem_id, sample, response. Read if asked."""
        return sample_files.read_responses(self.home or Path(), list(self.runs["run_id"]))

    @cached_property
    def counts_of(self) -> dict[tuple[str, int, str], Frame]:
        """`counts` by (run, step, benchmark), indexed by problem."""
        parts = self.counts.groupby(["run_id", "step", "source"], observed=True)
        return {(str(r), int(t), str(s)): part.set_index("problem_id") for (r, t, s), part in parts}


@dataclass(frozen=True)
class Catalogue:
    """All that a home or an MLflow store knows, before anything large is read."""

    home: Path
    records: dict[str, RunRecord]
    sweeps: list[Sweep]
    read_metrics: Callable[[Sequence[str]], tuple[Frame, list[str]]]
    origin: str
    notes: tuple[str, ...] = ()  # what could not be read

    def studies(self) -> list[str]:
        """Names of the studies, newest first: by the last thing planned or started in each."""
        newest: dict[str, float] = {}
        planned = [(study_of(sweep), sweep.created) for sweep in self.sweeps if not sweep.problems or sweep.study]
        for study, created in planned + [(r.study, r.created) for r in self.records.values() if r.study]:
            newest[study] = max(newest.get(study, -math.inf), -math.inf if math.isnan(created) else created)
        return sorted(newest, key=lambda s: (-newest[s], s))


def study_of(sweep: Sweep) -> str:
    return sweep.study or NO_STUDY


def catalogue(home: Path, *, source: Source = "ledger", uri: str | None = None) -> Catalogue:
    """List runs and sweeps. `uri`: MLflow tracking URI, by default `mlflow.db` of the home directory."""
    sweeps = read_sweeps(home)
    notes = [problem for sweep in sweeps for problem in sweep.problems]
    if source == "ledger":
        records, unreadable = read_runs(home)
        return Catalogue(home, records, sweeps, lambda ids: read_metrics(home, ids), source, (*notes, *unreadable))
    from analysis.frames.mlflow_reader import MlflowReader

    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{layout.mlflow_database(home)}"
    reader = MlflowReader(_store(home, uri))
    records = reader.runs()
    notes += reader.notes
    return Catalogue(home, records, sweeps, lambda ids: (reader.metrics(ids), []), reader.uri, tuple(notes))


def _store(home: Path, uri: str) -> str:
    """The URI with a relative sqlite path counted from the home directory, as the writer does."""
    path = uri.removeprefix("sqlite:///")
    return uri if path == uri else f"sqlite:///{(home / path).resolve()}"


def load(
    home: Path,
    *,
    source: Source = "ledger",
    uri: str | None = None,
    study: str | None = None,
    sweep: str | None = None,
    every_sample: bool = False,
) -> Frames:
    """The frames of one study or sweep (default: the newest study). Raises LookupError when there is no such thing."""
    return frames(catalogue(home, source=source, uri=uri), study=study, sweep=sweep, every_sample=every_sample)


def frames(
    found: Catalogue, *, study: str | None = None, sweep: str | None = None, every_sample: bool = False
) -> Frames:
    """As `load`, from a catalogue. `every_sample`: all evaluations, not only the first and the last of a run."""
    plans, study = _select(found, study, sweep)
    planned = {run["run_id"]: (s, run) for s in plans for run in s.runs}
    records = {i: _planned(i, *planned[i], found.records.get(i)) for i in planned}
    if sweep is None:
        records |= {i: r for i, r in found.records.items() if r.study == study and i not in records}
    runs = _runs_frame(list(records.values()), {i: s.sweep_id for i, (s, _) in planned.items()})
    others = [r for i, r in found.records.items() if i not in records and r.config.get("choices.loss") == "grpo"]
    runs = _with_references(runs, _runs_frame(others, {}))
    metrics, notes = found.read_metrics(list(runs["run_id"]))
    read = sample_files.read(found.home, list(runs["run_id"]), every=every_sample)
    commands = [s.command for s in plans] or [r.command for r in records.values()]
    return Frames(
        runs=runs,
        metrics=metrics,
        samples=read.samples,
        counts=read.counts,
        policy=sample_files.read_policy(found.home, list(runs["run_id"])),
        study=study,
        question=next((plan.question for plan in reversed(plans) if plan.question), ""),
        title=study if sweep is None else f"{study}, sweep {sweep}",
        commands=tuple(dict.fromkeys(c for c in commands if c)),
        notes=(*found.notes, *notes, *read.notes),
        home=found.home,
        origin=found.origin,
    )


def _select(found: Catalogue, study: str | None, sweep: str | None) -> tuple[list[Sweep], str]:
    studies = found.studies()
    if not studies:
        raise LookupError(
            " ".join([f"no run in {found.home} ({found.origin}). Start one: python -m rlvr.run", *found.notes])
        )
    if sweep is not None:
        plans = [s for s in found.sweeps if s.sweep_id == sweep]
        if not plans:
            known = ", ".join(s.sweep_id for s in found.sweeps) or "none"
            raise LookupError(f"--sweep {sweep}: there is no such sweep in {found.home}. Sweeps here: {known}.")
        return plans, study_of(plans[0])
    study = studies[0] if study is None else study
    if study not in studies:
        raise LookupError(f"--study {study}: there is no such study in {found.home}. Here: {', '.join(studies)}.")
    return [s for s in found.sweeps if study_of(s) == study], study


def _planned(run_id: str, sweep: Sweep, line: Any, record: RunRecord | None) -> RunRecord:
    """The record of a planned run; one that left no config is described by the manifest's line."""
    overrides = tuple(line.get("overrides", ()))
    if record is None:
        record = RunRecord(run_id=run_id, study=study_of(sweep), created=sweep.created, command=sweep.command)
    elif record.config:
        return replace(record, overrides=overrides)
    typed = dict(o.lstrip("+").split("=", 1) for o in overrides if "=" in o)
    config = {f"choices.{k}" if k in CHOICES else k: as_value(v) for k, v in typed.items()}
    config |= {f"loss.{key}": config[key] for key in ("eta", "beta") if key in config}
    config |= {"seed": line["seed"]} if "seed" in line else {}
    name, arm = str(line.get("name") or run_id), str(line.get("arm") or run_id)
    group_id = str(line.get("group_id") or f"planned:{arm}")
    return replace(record, overrides=overrides, name=name, arm=arm, group_id=group_id, config=config, frozen=False)


def _completed(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Gives planned runs that left no config what those with one agree on: other seeds, else runs of the same loss."""
    known = [record for record in records if record.frozen]
    return [record if record.frozen else _like(record, known) for record in records]


def _like(record: RunRecord, known: Sequence[RunRecord]) -> RunRecord:
    seeds = [other for other in known if other.group_id == record.group_id]
    relatives = [other for other in known if _choice(other, "loss") == _choice(record, "loss")]
    siblings = seeds or relatives or known
    agreed = {
        key: value
        for key, value in (siblings[0].config if siblings else {}).items()
        if all(key in other.config and other.config[key] == value for other in siblings)
    }
    return replace(record, config={**agreed, **record.config})


def _runs_frame(records: list[RunRecord], sweep_of: dict[str, str]) -> Frame:
    rows = [
        {
            "run_id": r.run_id,
            "group_id": r.group_id,
            "name": r.name,
            "arm": r.arm,
            "study": r.study,
            "sweep_id": sweep_of.get(r.run_id, ""),
            "state": r.state,
            "cause": r.cause,
            "message": r.message,
            "loss": _choice(r, "loss"),
            "divergence": _choice(r, "divergence"),
            "advantage": _choice(r, "advantage"),
            "task": _choice(r, "task"),
            "model": _choice(r, "model"),
            "eta": _number(r, "loss.eta", "eta"),
            "beta": _number(r, "loss.beta", "beta"),
            "seed": _number(r, "seed"),
            "steps": _number(r, "steps"),
            "created": r.created,
            "git_sha": r.git_sha,
            "git_dirty": r.git_dirty,
            "host": r.host,
            "command": r.command,
            "overrides": " ".join(r.overrides),
            "reference": False,
            **{f"config.{k}": v for k, v in r.config.items()},
        }
        for r in _completed(records)
    ]
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    order = ["loss", "divergence", "eta", "seed", "name", "run_id"]
    return frame.sort_values(order, ignore_index=True, na_position="first")


def _choice(record: RunRecord, group: str) -> str:
    """The chosen option of a config group."""
    return str(record.config.get(f"choices.{group}") or "")


def _number(record: RunRecord, *keys: str) -> float:
    values = [record.config.get(k) for k in keys]
    return next((float(v) for v in values if isinstance(v, int | float)), math.nan)


def _with_references(runs: Frame, others: Frame) -> Frame:
    """Add GRPO runs of other studies that share a setting with LAD runs that have no GRPO run beside them."""
    if others.empty or runs.empty:
        return runs
    columns = [c for c in runs.columns if c.startswith(SETTING) and c in others.columns]
    here = {tuple(map(repr, row)) for row in runs.loc[runs["loss"] == "lad", columns].itertuples(index=False)}
    here -= {tuple(map(repr, row)) for row in runs.loc[runs["loss"] == "grpo", columns].itertuples(index=False)}
    match = [tuple(map(repr, row)) in here for row in others[columns].itertuples(index=False)]
    extra = others[match].assign(reference=True)
    return pd.concat([runs, extra], ignore_index=True) if len(extra) else runs
