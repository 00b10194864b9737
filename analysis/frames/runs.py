"""What the ledger says of runs and sweeps, as the records and the frame that the rest of this package is made from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.frames import cache
from rlvr.ledger import layout, tags
from rlvr.ledger.cause import State
from rlvr.ledger.runs import Unreadable, choices, grouped, read_config, read_info
from rlvr.ledger.sweeps import Ledger, Sweep

NO_STUDY = "main"  # where runs stand that belong to no study


@dataclass
class RunRecord:
    """One run as a source describes it. `config` is flat: dotted key to plain value."""

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
    command: str = ""
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    frozen: bool = True  # False: nothing but a sweep's manifest describes it


def read_sweeps(home: Path) -> list[Sweep]:
    """Every sweep that was planned, oldest first."""
    return sorted(Ledger(home).sweeps(), key=lambda sweep: (sweep.created, sweep.sweep_id))


def read_runs(home: Path) -> tuple[dict[str, RunRecord], list[str]]:
    """(every run by its id, lines that name those of which something cannot be read)."""
    ledger = Ledger(home)
    configs = _configs(home, ledger.runs())
    records: dict[str, RunRecord] = {}
    errors: list[Unreadable] = []
    for run_id, config in configs.items():
        try:
            records[run_id] = _record(ledger, run_id, config)
        except Unreadable as error:
            errors.append(error)
            records[run_id] = RunRecord(run_id, state=State.UNREADABLE.value, message=error.why)
    return records, grouped(errors)


def _record(ledger: Ledger, run_id: str, config: dict[str, Any] | Unreadable) -> RunRecord:
    run_dir = ledger.run_dir(run_id)
    info, state = read_info(run_dir), ledger.state(run_id)
    if isinstance(config, Unreadable):
        raise config
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
        command=info.command,
        config=config,
    )


def _configs(home: Path, run_ids: Sequence[str]) -> dict[str, dict[str, Any] | Unreadable]:
    """Flat frozen configs, by run; YAML takes milliseconds each, so what was parsed is kept in the cache."""
    folders = {run_id: layout.run(home, run_id) for run_id in run_ids}
    states = {i: cache.state_of([layout.config(folder), layout.info(folder)]) for i, folder in folders.items()}

    def parse(run_id: str) -> pa.Table:
        content: dict[str, Any] | None = None
        what = why = ""
        try:
            content = flat_config(read_config(folders[run_id]))
        except Unreadable as error:
            what, why = error.what, error.why
        return pa.table({"config": [json.dumps(content)], "what": [what], "why": [why]})

    found = cache.rows(home, "configs", states, parse).to_pylist() if any(states.values()) else []
    return {row["run_id"]: json.loads(row["config"]) or Unreadable(row["what"], row["why"]) for row in found}


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """A frozen config as MLflow's params give it back, so that both sources have the same columns, and its choices."""
    params, _ = tags.params(config)
    values = {key: tags.as_value(text) for key, text in params.items()}
    return values | {f"choices.{group}": option for group, option in choices(config).items()}


def tidy_metrics(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """One frame, one row per (run, step, name): the first one met; sorted."""
    parts = [p for p in parts if len(p)]
    if not parts:
        empty = pd.DataFrame({"run_id": pd.Series(dtype=str), "step": pd.Series(dtype=int)})
        return empty.assign(name=pd.Series(dtype=str), value=pd.Series(dtype=float))
    frame = pd.concat(parts, ignore_index=True).drop_duplicates(["run_id", "step", "name"], keep="first")
    return frame.sort_values(["run_id", "name", "step"], ignore_index=True)
