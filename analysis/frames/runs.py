"""Runs and sweeps of the ledger: as records, and as the frame `runs`, on which the rest of this package builds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlvr.ledger import layout, tags
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json
from rlvr.ledger.identity import NOT_IDENTITY
from rlvr.ledger.runs import Unreadable, choices, lines_by_reason, read_config, read_info
from rlvr.ledger.sweeps import NO_STUDY, Ledger, Sweep

BROWSE = "http://127.0.0.1:5000"  # the address of `make browse`


@dataclass
class RunRecord:
    """One run as the ledger or MLflow describes it. `config` is flat: dotted key to plain value."""

    run_id: str
    group_id: str = ""
    name: str = ""
    arm: str = ""
    study: str = ""
    state: str = State.MISSING.value
    cause: str = ""
    message: str = ""
    created: float = math.nan
    git_sha: str = ""
    git_dirty: bool = False
    host: str = ""
    own_gpus: bool = False  # whether SLURM allocated it GPUs that no other run used
    command: str = ""
    log: str = ""  # path of its newest attempt's log, relative to the home
    dashboard: str = ""  # address of its page in MLflow
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    frozen: bool = True  # False: it left no config, and only a sweep's manifest describes it


def read_sweeps(home: Path) -> list[Sweep]:
    """Every planned sweep, oldest first."""
    return sorted(Ledger(home).sweeps(), key=lambda sweep: (sweep.created, sweep.sweep_id))


def read_runs(home: Path) -> tuple[dict[str, RunRecord], list[str]]:
    """(every run by its id, lines that name the runs of which something cannot be read)."""
    ledger = Ledger(home)
    records: dict[str, RunRecord] = {}
    errors: list[Unreadable] = []
    for run_id in ledger.runs():
        try:
            records[run_id] = _record(ledger, run_id)
        except Unreadable as error:
            errors.append(error)
            records[run_id] = RunRecord(run_id, state=State.UNREADABLE.value, message=error.why)
    planned = [record for record in records.values() if record.state == State.PLANNED]
    launched = ledger.waiting_here() if planned else set[str]()
    for record in planned:
        record.state = State.QUEUED.value if record.run_id in launched else record.state
    return records, lines_by_reason(errors)


def _record(ledger: Ledger, run_id: str) -> RunRecord:
    run_dir = ledger.run_dir(run_id)
    info, state = read_info(run_dir), ledger.state(run_id)
    return RunRecord(
        run_id=run_id,
        group_id=info.group_id,
        name=info.name,
        arm=info.arm,
        study=info.study or NO_STUDY,
        state=state.state.value,
        cause=state.cause,
        message=state.message,
        created=info.created or math.nan,
        git_sha=info.git_sha,
        git_dirty=info.git_dirty,
        host=state.host or info.host,
        own_gpus=state.own_gpus,
        command=info.command,
        log=_log(ledger.home, run_dir, state.attempt),
        dashboard=_dashboard(run_dir),
        config=flat_config(read_config(run_dir)),
    )


def _log(home: Path, run_dir: Path, attempt: int) -> str:
    log = layout.log(layout.attempt(run_dir, attempt))
    return log.relative_to(home).as_posix() if attempt and log.exists() else ""


def _dashboard(run_dir: Path) -> str:
    """The address of a run's page in the store to which it was shipped last; `make browse` serves a local store."""
    cursors = read_json(layout.cursor(run_dir)) or {}
    uri = next(reversed(cursors), "")
    cursor = cursors.get(uri)
    if not isinstance(cursor, dict) or not cursor.get("mlflow_run_id") or not cursor.get("experiment_id"):
        return ""
    server = uri if uri.startswith(("http://", "https://")) else BROWSE
    return f"{server}/#/experiments/{cursor['experiment_id']}/runs/{cursor['mlflow_run_id']}"


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """A frozen config with the values that MLflow's params would return, so that both sources have the same columns,
    and the chosen options of its groups."""
    params, _ = tags.params(config)
    values = {key: tags.as_value(text) for key, text in params.items()}
    return values | {f"choices.{group}": option for group, option in choices(config).items()}


# --- the frame


def _like(record: RunRecord, known: Sequence[RunRecord]) -> RunRecord:
    """The record with the config values on which its siblings agree: runs of its arm with other seeds, else runs of
    the same loss, else all."""
    seeds = [other for other in known if other.group_id == record.group_id]
    relatives = [other for other in known if _choice(other, "loss") == _choice(record, "loss")]
    siblings = seeds or relatives or known
    agreed = {
        key: value
        for key, value in (siblings[0].config if siblings else {}).items()
        if all(key in other.config and other.config[key] == value for other in siblings)
    }
    return replace(record, config={**agreed, **record.config})


# Columns of every frame `runs`, before its `config.` columns.
COLUMNS = (
    *("run_id", "group_id", "name", "arm", "study", "sweep_id", "state", "cause", "message", "loss", "divergence"),
    *("advantage", "task", "model", "eta", "beta", "seed", "steps", "created", "git_sha", "git_dirty", "host"),
    *("own_gpus", "command", "log", "dashboard", "overrides", "typed", "reference"),
)


def runs_frame(records: list[RunRecord], sweep_of: Mapping[str, str]) -> pd.DataFrame:
    """The frame `runs` of these records. sweep_of: the sweep that planned a run, by its id. The config of a planned run
    that left none is completed from runs that have one."""
    known = [record for record in records if record.frozen]
    completed = [record if record.frozen else _like(record, known) for record in records]
    frame = pd.DataFrame([_row(record, sweep_of.get(record.run_id, "")) for record in completed])
    order = ["loss", "divergence", "eta", "seed", "name", "run_id"]
    return frame.sort_values(order, ignore_index=True, na_position="first") if len(frame) else frame


def _row(record: RunRecord, sweep_id: str) -> dict[str, Any]:
    typed = tuple(map(without_secret, record.overrides))
    derived = {
        "sweep_id": sweep_id,
        **{group: _choice(record, group) for group in ("loss", "divergence", "advantage", "task", "model")},
        "loss": _choice(record, "loss") or _choice(record, "program"),  # another program than our trainer is a method
        "eta": _number(record, "loss.eta", "eta"),
        "beta": _number(record, "loss.beta", "beta"),
        "seed": _number(record, "seed"),
        "steps": _number(record, "steps"),
        "command": tags.redact(record.command),
        "overrides": " ".join(typed),
        "typed": typed,
        "reference": False,
    }
    row = {name: derived[name] if name in derived else getattr(record, name) for name in COLUMNS}
    return row | {f"config.{key}": value for key, value in record.config.items()}


def without_secret(override: str) -> str:
    """An override as typed. Of a key that does not influence results, such as a tracker's address, the password is
    removed."""
    return tags.redact(override) if override.lstrip("+~").split(".")[0].split("=")[0] in NOT_IDENTITY else override


def _choice(record: RunRecord, group: str) -> str:
    """The chosen option of a config group; "" if it is not known."""
    return str(record.config.get(f"choices.{group}") or "")


def _number(record: RunRecord, *keys: str) -> float:
    values = [record.config.get(k) for k in keys]
    return next((float(v) for v in values if isinstance(v, int | float)), math.nan)
