"""The frames of a study or sweep, from the ledger or from MLflow."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from analysis.frames import own_code
from analysis.frames.counts import Counts
from analysis.frames.frames import CHOICES, SETTING, Frames
from analysis.frames.journals import Curves, Journals, Logged
from analysis.frames.run import AGAIN
from analysis.frames.runs import NO_STUDY, RunRecord, read_runs, read_sweeps, runs_frame
from analysis.frames.samples import SampleFiles, damaged_policies, left_out
from rlvr.ledger import layout
from rlvr.ledger.sweeps import TUNING, Sweep, the_sweep
from rlvr.ledger.tags import as_value, redact

Source = Literal["ledger", "mlflow"]
OTHERS = 3  # sweeps named in a line, at most


@dataclass(frozen=True)
class Catalogue:
    """All that a home or an MLflow store knows, before anything large is read."""

    home: Path
    records: dict[str, RunRecord]
    sweeps: list[Sweep]
    curves: Callable[[Sequence[str]], Curves]
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
        return Catalogue(home, records, sweeps, lambda ids: Journals(home, ids), source, (*notes, *unreadable))
    from analysis.frames.mlflow_reader import MlflowReader

    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{layout.mlflow_database(home)}"
    reader = MlflowReader(_store(home, uri))
    records = reader.runs()
    notes += reader.notes
    return Catalogue(home, records, sweeps, lambda ids: Logged(reader.metrics(ids)), reader.uri, tuple(notes))


def _store(home: Path, uri: str) -> str:
    """The URI with a relative sqlite path counted from the home directory, as the writer does."""
    path = uri.removeprefix("sqlite:///")
    return uri if path == uri else f"sqlite:///{(home / path).resolve()}"


def load(
    home: Path | str | None = None,
    *,
    source: Source = "ledger",
    uri: str | None = None,
    study: str | None = None,
    sweep: str | None = None,
    every_sample: bool = False,
) -> Frames:
    """The frames of one study or sweep (default: the newest study). Raises LookupError when there is no such thing.

    home: where runs/ lies; None: $RLVR_HOME, else the checkout.
    """
    place = layout.home() if home is None else Path(home).expanduser().resolve()
    return frames(catalogue(place, source=source, uri=uri), study=study, sweep=sweep, every_sample=every_sample)


def frames(
    found: Catalogue,
    *,
    study: str | None = None,
    sweep: str | None = None,
    runs: Sequence[str] = (),
    every_sample: bool = False,
) -> Frames:
    """As `load`, from a catalogue. every_sample: `samples` of all evaluations, not only the first and last of a run.

    runs: their ids, in the place of a study or a sweep. Runs that chose a value for others are in the frames `tuned`
    alone, unless there are no others yet.
    """
    chosen = set(runs)
    plans, study = _of_runs(found, chosen) if chosen else _select(found, study, sweep)
    lines = [(s, run) for s in plans for run in s.runs if not chosen or run["run_id"] in chosen]
    lines.sort(key=lambda each: not each[1].get("control"))  # a run that is wanted for itself is no control
    planned = {run["run_id"]: (s, run) for s, run in lines if chosen or run.get("stage") != TUNING}
    tried = {run["run_id"]: (s, run) for s, run in lines if run["run_id"] not in planned}
    planned, tried = (planned, tried) if planned else (tried, {})
    records = {i: _planned(i, *planned[i], found.records.get(i)) for i in planned}
    if sweep is None:
        of_study = chosen or {i for i, r in found.records.items() if r.study == study}
        records |= {i: found.records[i] for i in found.records if i in of_study and i not in {*records, *tried}}
    table = runs_frame(list(records.values()), {i: s.sweep_id for i, (s, _) in planned.items()})
    notes: list[str] = []
    if study == NO_STUDY and sweep is None and not chosen:
        plans, table, notes = _like_the_newest(plans, table)
    of_others = [r for i, r in found.records.items() if i not in {*records, *tried}]
    grpo = [r for r in of_others if r.config.get("choices.loss") == "grpo"]
    table = table if chosen else _with_references(table, runs_frame(grpo, {}))
    commands = [s.command for s in plans] or [r.command for r in records.values()]
    whole = _frames_of(found, plans, study, table, every_sample=every_sample)
    whole = replace(
        whole,
        title=study if sweep is None else f"{study}, sweep {plans[0].name or plans[0].sweep_id}",
        notes=(*notes, *whole.notes),
        commands=tuple(dict.fromkeys(redact(c) for c in commands if c)),
    )
    if not tried:
        return whole
    tuning = [_planned(i, *tried[i], found.records.get(i)) for i in tried]
    in_sweep = {i: s.sweep_id for i, (s, _) in tried.items()}
    return replace(whole, tuned=_frames_of(found, plans, study, runs_frame(tuning, in_sweep)))


def _frames_of(
    found: Catalogue, plans: Sequence[Sweep], study: str, table: pd.DataFrame, *, every_sample: bool = False
) -> Frames:
    ids = [str(run_id) for run_id in table["run_id"]]
    curves, judgements = found.curves(ids), Counts(found.home, ids)
    policies = [left_out(found.home, file) for file in damaged_policies(found.home, ids)]
    unreadable = (*found.notes, *curves.notes(), *judgements.notes(), *policies)
    notes = [note.replace(f"{found.home}/", "") for note in (*unreadable, *own_code.notes(found.home, table))]
    return Frames(
        runs=table,
        curves=curves,
        judgements=judgements,
        stored=SampleFiles(found.home),
        study=study,
        question=next((plan.question for plan in reversed(plans) if plan.question), ""),
        notes=tuple(notes),
        home=found.home,
        origin=found.origin,
        sweeps=tuple(plans),
        every_sample=every_sample,
    )


def _select(found: Catalogue, study: str | None, sweep: str | None) -> tuple[list[Sweep], str]:
    studies = found.studies()
    if not studies:
        raise LookupError(
            " ".join([f"no run in {found.home} ({found.origin}). Start one: python -m rlvr.run", *found.notes])
        )
    if sweep is not None:
        try:
            plan = the_sweep(found.sweeps[::-1], sweep)
        except ValueError as error:
            raise LookupError(str(error)) from None
        return [plan], study_of(plan)
    study = studies[0] if study is None else study
    if study not in studies:
        raise LookupError(f"--study {study}: there is no such study in {found.home}. Here: {', '.join(studies)}.")
    return [s for s in found.sweeps if study_of(s) == study], study


def _like_the_newest(plans: Sequence[Sweep], table: pd.DataFrame) -> tuple[Sequence[Sweep], pd.DataFrame, list[str]]:
    """Of sweeps that share nothing but that they belong to no study, oldest first, and the frame `runs` of them: those
    in a setting of the newest one, and a line on the others, if there are any."""
    own = [plan for plan in plans if table["run_id"].isin(plan.run_ids).any()]
    if not own:
        return plans, table, []
    newest = table["run_id"].isin(own[-1].run_ids)
    columns = [c for c in table.columns if c.startswith(SETTING)]
    settings = table[columns].map(repr).agg(" ".join, axis=1)
    alike = newest | settings.isin(settings[newest])
    left_out = [plan for plan in own if not table["run_id"][alike].isin(plan.run_ids).any()]
    if alike.all():
        return plans, table, []
    shown = table[newest][columns].map(repr)
    differing = [c.removeprefix("config.") for c in columns if not table[c][~alike].map(repr).isin(shown[c]).all()]
    commands = [f"python -m analysis {plan.sweep_id}" for plan in reversed(left_out)]
    more = [f"{len(commands) - OTHERS} more"] if len(commands) > OTHERS else []
    where = ", ".join([*commands[:OTHERS], *more]) or "python -m sweeps status --all"
    count = int((~alike).sum())
    line = f"Not shown: {count} run{'s' * (count > 1)} of no study, which differ in {', '.join(differing[:4])}: {where}"
    return [plan for plan in plans if plan not in left_out], table[alike].reset_index(drop=True), [line]


def _of_runs(found: Catalogue, chosen: set[str]) -> tuple[list[Sweep], str]:
    """(the sweeps that planned some of these runs, their studies)."""
    plans = [sweep for sweep in found.sweeps if not chosen.isdisjoint(sweep.run_ids)]
    studies = {study_of(sweep) for sweep in plans} | {found.records[i].study for i in chosen if i in found.records}
    return plans, " and ".join(sorted(studies)) or NO_STUDY


def _planned(run_id: str, sweep: Sweep, line: Any, record: RunRecord | None) -> RunRecord:
    """The record of a planned run. One that repeats an arm as its noise floor is of a group of its own."""
    known = _described(run_id, sweep, line, record)
    if not line.get("control"):
        return known
    return replace(known, group_id=known.group_id + AGAIN, overrides=(*known.overrides, "control=seeds"))


def _described(run_id: str, sweep: Sweep, line: Any, record: RunRecord | None) -> RunRecord:
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


def _with_references(runs: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Add GRPO runs of other studies that share a setting with LAD runs that have no GRPO run beside them."""
    if others.empty or runs.empty:
        return runs
    columns = [c for c in runs.columns if c.startswith(SETTING) and c in others.columns]
    here = {tuple(map(repr, row)) for row in runs.loc[runs["loss"] == "lad", columns].itertuples(index=False)}
    here -= {tuple(map(repr, row)) for row in runs.loc[runs["loss"] == "grpo", columns].itertuples(index=False)}
    match = [tuple(map(repr, row)) in here for row in others[columns].itertuples(index=False)]
    extra = others[match].assign(reference=True)
    return pd.concat([runs, extra], ignore_index=True) if len(extra) else runs
