"""The frames of a study or sweep, from the ledger or from MLflow."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from analysis.frames import own_code
from analysis.frames.frames import CHOICES, REPETITION, SETTING, Frames
from analysis.frames.frames import records as records_of
from analysis.frames.home import RunFiles, tables_of_store
from analysis.frames.runs import NO_STUDY, RunRecord, read_runs, read_sweeps, runs_frame
from analysis.frames.samples import of_home
from analysis.frames.tables import Tables
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import TUNING, NoSweep, Sweep, find_sweep
from rlvr.ledger.tags import as_value, redact
from rlvr.ledger.terminal import near

Source = Literal["ledger", "mlflow"]
STUDY_FILES = Path(__file__).parents[2] / "sweeps"  # NAME.yaml: the question, the arms and the claims of a study
OF_TEST = ("task.", "evaluation.problems")  # keys of a config by which test problems differ
QUERY = "policy.query"  # of a final split, whose problems are others: `2-of-3`


@dataclass(frozen=True)
class Catalogue:
    """The runs and sweeps of a home or an MLflow store, before anything large is read."""

    home: Path
    records: dict[str, RunRecord]
    sweeps: list[Sweep]
    tables: Callable[[RunFiles], Tables]
    origin: str  # "ledger", or the address of the store, without a password
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
    """List runs and sweeps. Raises LookupError for an unknown source.

    uri: MLflow tracking URI, by default `mlflow.db` of the home directory.
    """
    if source not in get_args(Source):
        raise LookupError(f"source={source!r} is neither of {', '.join(get_args(Source))}.")
    sweeps = read_sweeps(home)
    notes = [problem for sweep in sweeps for problem in sweep.problems]
    if source == "ledger":
        records, unreadable = read_runs(home)
        return Catalogue(home, records, sweeps, RunFiles.tables, source, (*notes, *unreadable))
    from analysis.frames.mlflow_reader import MlflowReader

    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{layout.mlflow_database(home)}"
    path = uri.removeprefix("sqlite:///")  # a relative one is of the home, as for the writer of MLflow
    reader = MlflowReader(uri if path == uri else f"sqlite:///{(home / path).resolve()}")
    records = reader.runs()
    notes += reader.notes

    def tables(files: RunFiles) -> Tables:
        return tables_of_store(files, reader.metrics(files.run_ids))

    return Catalogue(home, records, sweeps, tables, redact(reader.uri), tuple(notes))


def load(
    home: Path | str | None = None,
    *,
    source: Source = "ledger",
    uri: str | None = None,
    study: str | None = None,
    sweep: str | None = None,
    mixed_code: bool = False,
) -> Frames:
    """The frames of one study or sweep (default: the newest study). Raises LookupError if it does not exist and, unless
    `mixed_code`, for runs of one arm whose code was not the same.

    home: the directory of runs/; None: $RLVR_HOME, else the checkout.
    """
    home = layout.home() if home is None else Path(home).expanduser().resolve()
    return frames(catalogue(home, source=source, uri=uri), study=study, sweep=sweep, mixed_code=mixed_code)


def frames(
    listing: Catalogue,
    *,
    study: str | None = None,
    sweep: str | None = None,
    runs: Sequence[str] = (),
    mixed_code: bool = False,
    spend: bool = False,
) -> Frames:
    """As `load`, from a catalogue. spend: the reports on the same test problems share the 5 % (`spent`).

    runs: ids of runs, instead of a study or a sweep. Tuning runs are only in the frames `tuned`, unless there are no
    other runs yet.
    """
    chosen = set(runs)
    plans, study = _of_runs(listing, chosen) if chosen else _select(listing, study, sweep)
    reported, tuning = _lines(plans, chosen)
    records = {run_id: _planned(run_id, *line, listing.records.get(run_id)) for run_id, line in reported.items()}
    if sweep is None:
        of_study = chosen or {i for i, record in listing.records.items() if record.study == study}
        unplanned = of_study - {*reported, *tuning}
        records |= {i: record for i, record in listing.records.items() if i in unplanned}
    table = runs_frame(list(records.values()), {i: plan.sweep_id for i, (plan, _) in reported.items()})
    not_shown: list[str] = []
    if study == NO_STUDY and sweep is None and not chosen:
        plans, table, not_shown = _like_the_newest(plans, table)
    if not chosen:
        others = [record for i, record in listing.records.items() if i not in {*records, *tuning}]
        table = _with_references(table, [record for record in others if record.config.get("choices.loss") == "grpo"])
    commands = [plan.command for plan in plans] or [record.command for record in records.values()]
    selected = _frames_of(listing, plans, study, table)
    if not mixed_code:
        own_code.refuse_mixed(selected.runs)
    looks, look = _looks(listing, set(selected.runs["run_id"]), plans)
    return replace(
        selected,
        alpha=spent(look) if spend else selected.alpha,
        mixed_code=mixed_code,
        title=study if sweep is None else f"{study}, sweep {plans[0].name or plans[0].sweep_id}",
        notes=(*not_shown, *looks, *selected.notes),
        commands=tuple(dict.fromkeys(redact(c) for c in commands if c)),
        tuned=_tuned(listing, plans, study, tuning),
    )


def spent(look: int) -> float:
    """The share of the 5 % for look 1, 2, 3, … at the same test problems: 5 %·6/(πk)²; all looks together have 5 %."""
    return 0.05 * 6 / (math.pi * look) ** 2


def _looks(listing: Catalogue, shown: Collection[str], plans: Sequence[Sweep]) -> tuple[list[str], int]:
    """(a line on how often the test problems of these runs were looked at, [] for the first time; the number of the
    newest of these sweeps among them, in the order in which they began). Sweeps of one final query are one look."""
    configs = {i: record.config for i, record in listing.records.items()}  # unfinished, too: numbers stay as they are
    of_test = {i: sorted(pair for pair in c.items() if pair[0].startswith(OF_TEST)) for i, c in configs.items()}
    problems = {i: repr((bool(configs[i].get(QUERY)), pairs)) for i, pairs in of_test.items() if pairs}  # of each run
    these, look_of = {problems[i] for i in shown if i in problems}, dict[str, str]()
    for sweep in listing.sweeps:
        queries = [str(configs[i].get(QUERY) or "") for i in sweep.run_ids if problems.get(i) in these]
        if queries:
            look_of[sweep.sweep_id] = queries[0].partition("-")[0] or sweep.sweep_id
    looks, these_sweeps = list(dict.fromkeys(look_of.values())), {plan.sweep_id for plan in plans}
    look = max((looks.index(name) + 1 for sweep_id, name in look_of.items() if sweep_id in these_sweeps), default=1)
    kind = "sweeps" if look_of.keys() & {*looks} else "final queries"
    line = (
        f"{len(looks)} {kind} of this home were launched on these test problems; these runs are look {look}. The 5 % "
        "of errors are those of one report (with `--spend` of all looks together): what was chosen after many looks "
        "deserves test problems that no look has seen."
    )
    return [line] if len(looks) > 1 else [], look


Lines = dict[str, tuple[Sweep, Mapping[str, Any]]]  # by run id, the sweep that plans the run, and its line there


def _lines(plans: Sequence[Sweep], chosen: Collection[str]) -> tuple[Lines, Lines]:
    """(the runs to report, the tuning runs beside them). chosen: ids of runs, where these alone are wanted.

    Of two lines on a run the later one counts, but a run that is planned for itself, too, is no control.
    """
    lines = [(plan, line) for plan in plans for line in plan.runs if not chosen or line["run_id"] in chosen]
    lines.sort(key=lambda pair: not pair[1].get("control"))
    reported = {line["run_id"]: (plan, line) for plan, line in lines if chosen or line.get("stage") != TUNING}
    tuning = {line["run_id"]: (plan, line) for plan, line in lines if line["run_id"] not in reported}
    return (reported, tuning) if reported else (tuning, {})


def _tuned(listing: Catalogue, plans: Sequence[Sweep], study: str, tuning: Lines) -> Frames | None:
    shown = {plan.sweep_id for plan in plans}
    sweep_of = {i: plan.sweep_id for i, (plan, _) in tuning.items() if plan.sweep_id in shown}
    if not sweep_of:
        return None
    records = [_planned(i, *tuning[i], listing.records.get(i)) for i in sweep_of]
    return _frames_of(listing, plans, study, runs_frame(records, sweep_of))


def _frames_of(listing: Catalogue, plans: Sequence[Sweep], study: str, table: pd.DataFrame) -> Frames:
    table = own_code.with_code(listing.home, table)
    readable = table[table["state"] != State.UNREADABLE.value]
    files = RunFiles(listing.home, [str(run_id) for run_id in readable["run_id"]])
    is_ledger = listing.origin == "ledger"
    cut_short = _cut_journals(files, table, listing.home) if is_ledger else {}
    is_cut = table["run_id"].isin(list(cut_short))
    notes = [
        *listing.notes,
        *cut_short.values(),
        *(files.notes_on_journals() if is_ledger else ()),
        *files.notes_on_samples(),
        *own_code.notes(table),
    ]
    return Frames(
        runs=table.assign(state=table["state"].mask(is_cut, State.UNREADABLE.value)),
        tables=listing.tables(files),
        stored=of_home(listing.home),
        study=study,
        question=next((plan.question for plan in reversed(plans) if plan.question), ""),
        notes=tuple(note.replace(f"{listing.home}/", "") for note in notes),
        home=listing.home,
        origin=listing.origin,
        sweeps=tuple(plans),
    )


def _cut_journals(files: RunFiles, runs: pd.DataFrame, home: Path) -> dict[str, str]:
    """By id of a finished run whose journal lacks its last step, a note on it: the run counts as unreadable.

    A finished run has recorded every step and evaluated the last one: such a journal was cut, or copied during the run.
    Its last evaluation is not the run's result. Nor do the samples of the last one suffice: its costs are missing.
    """
    notes: dict[str, str] = {}
    for row in records_of(runs[["run_id", "name", "state", "steps"]]):
        run_id, steps = str(row["run_id"]), row["steps"]
        last, file = files.last_step(run_id), layout.journal(layout.run(home, run_id))
        if row["state"] == State.FINISHED and last < steps:  # not for a run without a config: NaN
            fault = f"ends at step {last} of {steps:.0f}" if file.exists() else "is missing"
            notes[run_id] = (
                f"{row['name']} is finished, but {file} {fault}: the run counts as unreadable, and has no score. Put "
                f"back a whole copy of the file, or delete {file.parent} and repeat the launch."
            )
    return notes


def _select(listing: Catalogue, study: str | None, sweep: str | None) -> tuple[list[Sweep], str]:
    studies = listing.studies()
    if not studies:
        raise LookupError(
            " ".join([f"no run in {listing.home} ({listing.origin}). Start one: python -m rlvr.run", *listing.notes])
        )
    if sweep is not None:
        if study is not None:
            raise LookupError(f"study={study} and sweep={sweep}: a sweep belongs to one study. Drop one of the two.")
        try:
            plan = find_sweep(listing.sweeps[::-1], sweep)
        except NoSweep:
            raise LookupError(_nothing_of_the_name(listing, sweep)) from None
        except ValueError as error:
            raise LookupError(str(error)) from None
        return [plan], study_of(plan)
    study = studies[0] if study is None else study
    if study not in studies:
        suggestion = _suggestion(study, studies)
        raise LookupError(
            f"--study {study}: there is no such study in {listing.home}. Here: {', '.join(studies)}.{suggestion}"
        )
    return [plan for plan in listing.sweeps if study_of(plan) == study], study


def _nothing_of_the_name(listing: Catalogue, name: str) -> str:
    studies = listing.studies()
    if name in studies:
        return f"{name} is a study without a sweep: python -m analysis {name}"
    sweeps = list(dict.fromkeys(sweep.name or sweep.sweep_id for sweep in listing.sweeps[::-1]))
    listed = f"Studies: {', '.join(studies)}; sweeps, newest first: {', '.join(sweeps[:8]) or 'none'}."
    return f"there is no study or sweep {name} here. {listed}{_suggestion(name, [*studies, *sweeps])}"


def _suggestion(name: str, names: Sequence[str]) -> str:
    """How a study of this name, of which nothing ran, is launched; else what may have been meant; "" without either."""
    if (STUDY_FILES / f"{name}.yaml").is_file():
        return f" The study {name} has no runs yet: python -m rlvr.run -m study={name}"
    return near(name, names)


def _like_the_newest(plans: Sequence[Sweep], table: pd.DataFrame) -> tuple[Sequence[Sweep], pd.DataFrame, list[str]]:
    """The sweeps and runs in a setting of the newest sweep, and a line on the others, if there are any.

    plans: sweeps of no study, oldest first, which need not have anything in common. table: the frame `runs` of them.
    """
    with_runs = [plan for plan in plans if table["run_id"].isin(plan.run_ids).any()]
    if not with_runs:
        return plans, table, []
    newest = table["run_id"].isin(with_runs[-1].run_ids)
    columns = [c for c in table.columns if c.startswith(SETTING)]
    settings = _settings(table, columns)
    alike = newest | settings.isin(settings[newest])
    left_out = [plan for plan in with_runs if not table["run_id"][alike].isin(plan.run_ids).any()]
    if alike.all():
        return plans, table, []
    shown = table[newest][columns].map(repr)
    differing = [c.removeprefix("config.") for c in columns if not table[c][~alike].map(repr).isin(shown[c]).all()]
    commands = [f"python -m analysis {plan.sweep_id}" for plan in reversed(left_out)]
    to_see_them = own_code.first_few(commands) or "python -m sweeps status --all"
    count = int((~alike).sum())
    keys = ", ".join(differing[:4])
    line = f"Not shown: {count} run{'s' * (count > 1)} of no study, which differ in {keys}: {to_see_them}"
    return [plan for plan in plans if plan not in left_out], table[alike].reset_index(drop=True), [line]


def _of_runs(listing: Catalogue, chosen: set[str]) -> tuple[list[Sweep], str]:
    """(the sweeps that planned some of these runs, the names of their studies joined)."""
    plans = [sweep for sweep in listing.sweeps if not chosen.isdisjoint(sweep.run_ids)]
    studies = {study_of(sweep) for sweep in plans} | {listing.records[i].study for i in chosen if i in listing.records}
    return plans, " and ".join(sorted(studies)) or NO_STUDY


def _planned(run_id: str, sweep: Sweep, line: Any, record: RunRecord | None) -> RunRecord:
    """The record of a planned run, from its config or, if it has none, from its line in the sweep's manifest. A run
    that repeats an arm as its noise floor gets a group of its own."""
    overrides = tuple(line.get("overrides") or ())
    if record is None:
        record = RunRecord(run_id=run_id, study=study_of(sweep), created=sweep.created, command=sweep.command)
    if not record.config:
        typed = dict(o.lstrip("+").split("=", 1) for o in overrides if "=" in o)
        config = {f"choices.{k}" if k in CHOICES else k: as_value(v) for k, v in typed.items()}
        config |= {f"loss.{key}": config[key] for key in ("eta", "beta") if key in config}
        config |= {"seed": line["seed"]} if "seed" in line else {}
        name, arm = str(line.get("name") or run_id), str(line.get("arm") or run_id)
        group_id = str(line.get("group_id") or f"planned:{arm}")
        record = replace(record, name=name, arm=arm, group_id=group_id, config=config, frozen=False)
    if line.get("control"):
        record = replace(record, group_id=record.group_id + REPETITION)
        overrides += ("control=seeds",)
    return replace(record, overrides=overrides)


def _settings(runs: pd.DataFrame, columns: Sequence[str]) -> pd.Series[Any]:
    """The setting of each run as a text."""
    texts = [" ".join(map(repr, row)) for row in runs[list(columns)].to_numpy(object)]
    return pd.Series(texts, index=runs.index, dtype=str)


def _with_references(runs: pd.DataFrame, grpo: list[RunRecord]) -> pd.DataFrame:
    """Add GRPO runs of other studies that share a setting with LAD runs that have no GRPO run beside them."""
    others = runs_frame(grpo, {})
    if others.empty or runs.empty:
        return runs
    columns = [c for c in runs.columns if c.startswith(SETTING) and c in others.columns]
    settings = _settings(runs, columns)
    lacking = set(settings[runs["loss"] == "lad"]) - set(settings[runs["loss"] == "grpo"])
    match = _settings(others, columns).isin(list(lacking))
    extra = others[match].assign(reference=True)
    return pd.concat([runs, extra], ignore_index=True) if len(extra) else runs
