"""Reads `runs/`: what was planned, what every run was told (config), how it stands, and what it measured."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.frames.frame import Frame

SILENT_S = 900.0  # a run on another host whose heartbeat is older than this is not called running

# Exit causes after which the run goes on by itself or on request; every other cause but "ok" is a failure.
ENDS = {"ok": "done", "pruned": "pruned", "diverged": "diverged"}
RESUMABLE = frozenset({"preempted", "time_limit", "node", "busy"})
# Where and how a run was executed: no part of what it is, and not kept by MLflow either.
CIRCUMSTANCES = frozenset({"cluster", "tracker", "hydra"})


class _Loader(yaml.SafeLoader):
    """YAML as OmegaConf writes and reads it: `1e-06` is a number, not a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def parse(text: str) -> Any:
    """A YAML document or scalar."""
    return yaml.load(text, Loader=_Loader)


@dataclass(frozen=True)
class Sweep:
    """A plan: the runs that should exist, and why."""

    sweep_id: str
    study: str
    command: str
    created: float  # unix s
    runs: tuple[Mapping[str, Any], ...]  # {run_id, name, overrides, index}
    question: str = ""  # of the study


@dataclass
class RunRecord:
    """One run as a source describes it. `config` is flat: dotted key to plain value."""

    run_id: str
    group_id: str = ""
    name: str = ""
    study: str = ""
    state: str = "missing"  # done | running | interrupted | pruned | failed | missing
    cause: str = ""
    message: str = ""
    created: float = math.nan
    git_sha: str = ""
    git_dirty: bool = False
    host: str = ""
    command: str = ""
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping to {dotted key: plain value}; lists are kept as one value, written as JSON.

    Values pass through text, as MLflow keeps them, so that both sources give the same columns.
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = plain(value if isinstance(value, str) else json.dumps(value, default=str))
    return flat


def config_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A run's frozen config, flat. Hydra names a group that another file pulled in `group@package`: here `group`."""
    kept = {k: v for k, v in tree.items() if k not in CIRCUMSTANCES}
    choices = {k.partition("@")[0]: v for k, v in (tree.get("choices") or {}).items() if v is not None}
    return flatten({**kept, "choices": choices}) if choices else flatten(kept)


def plain(text: str) -> Any:
    """Text to bool, int, float, str or None; a list stays text such as `[1, 8]`."""
    try:
        value = parse(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float) or value is None else text


def read_sweeps(home: Path) -> list[Sweep]:
    """Every sweep that was planned, oldest first."""
    sweeps: list[Sweep] = []
    for file in sorted(home.glob("runs/sweeps/*/sweep.json")):
        info = json.loads(file.read_text(encoding="utf-8"))
        manifest = file.with_name("manifest.jsonl")
        lines = read_lines(manifest)[0] if manifest.exists() else []
        sweeps.append(
            Sweep(
                info["sweep_id"],
                info.get("study") or "main",
                info.get("command", ""),
                when(info),
                tuple(lines),
                info.get("question", ""),
            )
        )
    return sorted(sweeps, key=lambda s: (s.created, s.sweep_id))


def read_runs(home: Path) -> dict[str, RunRecord]:
    """Every run that has a frozen config, by run_id."""
    return {f.parent.name: _read_run(f.parent) for f in sorted(home.glob("runs/*/config.yaml"))}


def _read_run(folder: Path) -> RunRecord:
    file = folder / "run.json"
    info = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    state, cause, message = _state(folder)
    return RunRecord(
        run_id=folder.name,
        group_id=info.get("group_id", ""),
        name=info.get("name", folder.name),
        study=info.get("study") or "main",
        state=state,
        cause=cause,
        message=message,
        created=when(info),
        git_sha=info.get("git_sha") or "",
        git_dirty=bool(info.get("git_dirty")),
        host=_newest_host(folder) or info.get("host") or "",
        command=info.get("command") or "",
        config=config_of(parse((folder / "config.yaml").read_text(encoding="utf-8"))),
    )


def when(info: Mapping[str, Any]) -> float:
    """Unix seconds of `created`, written as a number or in ISO 8601; NaN if absent."""
    value = info.get("created")
    if value is None or isinstance(value, int | float):
        return math.nan if value is None else float(value)
    return datetime.fromisoformat(value).timestamp()


def _newest_attempt(folder: Path) -> Path | None:
    attempts = [p for p in folder.glob("attempts/*") if p.name.isdigit()]
    return max(attempts, key=lambda p: int(p.name), default=None)


def _newest_host(folder: Path) -> str:
    newest = _newest_attempt(folder)
    return str(_json(newest / "job.json").get("host") or "") if newest else ""


def _state(folder: Path) -> tuple[str, str, str]:
    """(state, exit cause, message) of the newest attempt."""
    newest = _newest_attempt(folder)
    if newest is None:
        return "missing", "", ""
    if (newest / "exit.json").exists():
        end = json.loads((newest / "exit.json").read_text(encoding="utf-8"))
        cause = end.get("cause", "error")
        state = ENDS.get(cause, "interrupted" if cause in RESUMABLE else "failed")
        return state, cause, end.get("message") or ""
    return ("running", "", "") if _alive(newest) else ("interrupted", "", "it stopped without saying why")


def _alive(attempt: Path) -> bool:
    """Whether the process is there (same host), or was heard of lately (another host). Never touches the run's lock."""
    job = _json(attempt / "job.json")
    if job.get("host") == socket.gethostname() and job.get("pid"):
        try:
            os.kill(int(job["pid"]), 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # there, and somebody else's
            return True
        return True
    heard = _json(attempt / "heartbeat.json").get("time") or job.get("started")
    return isinstance(heard, int | float) and time.time() - heard < SILENT_S


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def read_lines(file: Path) -> tuple[list[dict[str, Any]], int]:
    """(the JSON objects of a .jsonl file, number of unreadable lines): a killed writer leaves half a line.

    A line that carries a checksum (`crc`, of the bytes before it) must agree with it.
    """
    found: list[dict[str, Any]] = []
    torn = 0
    for line in file.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            torn += 1
            continue
        crc = value.pop("crc", None)
        if crc is not None and int(crc, 16) != zlib.crc32(line.rpartition(',"crc"')[0].encode()):
            torn += 1
            continue
        found.append(value)
    return found, torn


def read_metrics(home: Path, run_ids: Iterable[str]) -> tuple[Frame, list[str]]:
    """(long frame run_id, step, name, value; notes). The first record of a step counts, as the tracker promises."""
    parts: list[Frame] = []
    notes: list[str] = []
    for run_id in run_ids:
        file = home / "runs" / run_id / "metrics.jsonl"
        if not file.exists():
            continue
        lines, torn = read_lines(file)
        if torn:
            notes.append(f"runs/{run_id}/metrics.jsonl: {torn} unreadable line(s) left out.")
        rows = [
            (run_id, int(x["step"]), k, math.nan if v is None else float(v))
            for x in lines
            for k, v in x["metrics"].items()
        ]
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
