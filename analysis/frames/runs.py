"""What the ledger says of runs and sweeps, as the records and the frame that the rest of this package is made from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frames.frame import Frame
from rlvr.ledger import journal, layout, tags
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
    records: dict[str, RunRecord] = {}
    errors: list[Unreadable] = []
    for run_id in ledger.runs():
        try:
            records[run_id] = _record(ledger, run_id)
        except Unreadable as error:
            errors.append(error)
            records[run_id] = RunRecord(run_id, state=State.UNREADABLE.value, message=error.why)
    return records, grouped(errors)


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
        command=info.command,
        config=flat_config(read_config(run_dir)),
    )


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """A frozen config as MLflow's params give it back, so that both sources have the same columns, and its choices."""
    params, _ = tags.params(config)
    values = {key: tags.as_value(text) for key, text in params.items()}
    return values | {f"choices.{group}": option for group, option in choices(config).items()}


def read_metrics(home: Path, run_ids: Iterable[str]) -> tuple[Frame, list[str]]:
    """(long frame run_id, step, name, value; notes). The first record of a step counts, as the tracker promises."""
    parts: list[Frame] = []
    notes: list[str] = []
    for run_id in run_ids:
        path = layout.journal(layout.run(home, run_id))
        reading = journal.read(path)
        faults = [*map(str, reading.damaged), *(["the last one is torn"] if reading.torn else [])]
        if faults:
            notes.append(f"{path.relative_to(home)}: {len(faults)} unreadable line(s) left out: {', '.join(faults)}.")
        rows = [(run_id, r.step, name, value) for r in reading.records for name, value in r.metrics.items()]
        parts.append(pd.DataFrame(rows, columns=["run_id", "step", "name", "value"]))
    return tidy_metrics(parts), notes


def tidy_metrics(parts: list[Frame]) -> Frame:
    """One frame, one row per (run, step, name): the first one met; sorted."""
    parts = [p for p in parts if len(p)]
    if not parts:
        empty = pd.DataFrame({"run_id": pd.Series(dtype=str), "step": pd.Series(dtype=int)})
        return empty.assign(name=pd.Series(dtype=str), value=pd.Series(dtype=float))
    frame = pd.concat(parts, ignore_index=True).drop_duplicates(["run_id", "step", "name"], keep="first")
    return frame.sort_values(["run_id", "name", "step"], ignore_index=True)
