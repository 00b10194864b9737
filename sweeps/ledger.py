"""What is planned and how it stands, read from the files under `runs/`: no index, no daemon, nothing to repair.

runs/<run_id>/{config.yaml,run.json,lock}   attempts/<N>/{job,heartbeat,exit}.json, log.txt   (rlvr/attempt.py)
runs/sweeps/<sweep_id>/{sweep.json,manifest.jsonl}
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr import lock
from rlvr.attempt import newest_attempt
from rlvr.identity import identity
from rlvr.paths import read_json, write_json, write_text

State = Literal["queued", "running", "finished", "diverged", "failed", "preempted", "pruned", "lost"]
SILENT_S = 900.0  # where locks tell nothing, a run elsewhere that was not heard of for so long is lost


@dataclass(frozen=True)
class RunState:
    """How a run stands. Times in seconds; what nobody has said yet is None, 0 or ""."""

    run_id: str
    name: str
    state: State
    attempt: int = 0  # number of the newest one; 0: none yet
    step: int = 0
    steps: int = 0
    phase: str = ""
    accuracy: float | None = None
    cause: str = ""
    message: str = ""
    seconds: float = 0.0  # spent by all attempts together
    started: float | None = None  # unix time, newest attempt
    heartbeat_age: float | None = None  # of a running attempt
    eta: float | None = None  # until the last step, at the pace of this attempt
    log: Path | None = None

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True)
class Sweep:
    """A set of runs and why."""

    sweep_id: str
    info: Mapping[str, Any]  # sweep.json
    runs: tuple[Mapping[str, Any], ...]  # manifest.jsonl: run_id, name, overrides, index

    @property
    def run_ids(self) -> list[str]:
        return [run["run_id"] for run in self.runs]


def sweep_id(study: str, run_ids: Iterable[str]) -> str:
    """8 hexadecimal digits naming a set of runs of a study."""
    return hashlib.sha256("\n".join([study, *sorted(run_ids)]).encode()).hexdigest()[:8]


class Ledger:
    """The runs and sweeps under `home`/runs."""

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home)
        self.root = self.home / "runs"

    # --- writing

    def create_run(self, run_id: str, config_yaml: str, info: Mapping[str, Any]) -> Path:
        """Put a run on the ledger; harmless when repeated. Raises ValueError if the id already means another run.

        What has no part in a run's identity (cluster, tracker, ...) may differ: the newest launch decides it, until
        the run is finished.
        """
        target = self.run_dir(run_id)
        if not (target / "config.yaml").exists() and self._build_aside(target, config_yaml, info):
            return target
        try:
            before = (target / "config.yaml").read_text(encoding="utf-8")
        except FileNotFoundError:  # a directory that something else made
            before = None
        if before is not None and before != config_yaml:
            _check_same_run(run_id, before, config_yaml)
        if before is None or (before != config_yaml and self.state(run_id).state != "finished"):
            write_text(target / "config.yaml", config_yaml)
        if read_json(target / "run.json") is None:
            write_json(target / "run.json", info)
        return target

    def _build_aside(self, target: Path, config_yaml: str, info: Mapping[str, Any]) -> bool:
        """Make the whole directory elsewhere and rename it into place. False if something stands there already."""
        aside = self.root / f".{target.name}.{os.getpid()}.{time.monotonic_ns()}"
        aside.mkdir(parents=True)
        write_text(aside / "config.yaml", config_yaml)
        write_json(aside / "run.json", info)
        try:
            aside.rename(target)
        except OSError:
            if not target.exists():
                raise
            shutil.rmtree(aside)
            return False
        return True

    def record_sweep(self, sweep_id: str, info: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Path:
        """Put a sweep on the ledger, or put it on top again. The runs are written before the file that names them."""
        target = self.sweep_dir(sweep_id)
        target.mkdir(parents=True, exist_ok=True)
        write_text(target / "manifest.jsonl", "".join(json.dumps(run) + "\n" for run in runs))
        write_json(target / "sweep.json", {**info, "sweep_id": sweep_id})
        return target

    # --- reading

    def run_dir(self, run_id: str) -> Path:
        return self.root / run_id

    def sweep_dir(self, sweep_id: str) -> Path:
        return self.root / "sweeps" / sweep_id

    def runs(self) -> list[str]:
        """Ids of all runs, sorted."""
        return sorted(p.parent.name for p in self.root.glob("*/config.yaml") if not p.parent.name.startswith("."))

    def sweeps(self) -> list[Sweep]:
        """All sweeps, the one that was launched last first."""
        found = sorted(self.root.glob("sweeps/*/sweep.json"), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        return [self.sweep(p.parent.name) for p in found]

    def sweep(self, sweep_id: str) -> Sweep:
        """One sweep by its exact id. Raises ValueError if there is none."""
        info = read_json(self.sweep_dir(sweep_id) / "sweep.json")
        if info is None:
            raise ValueError(f"There is no sweep {sweep_id} in {self.root}. `python -m sweeps status --all` lists all.")
        return Sweep(sweep_id, info, tuple(_read_lines(self.sweep_dir(sweep_id) / "manifest.jsonl")))

    def state(self, run_id: str) -> RunState:
        """How a run stands, from its attempts."""
        run_dir = self.run_dir(run_id)
        name = str((read_json(run_dir / "run.json") or {}).get("name") or run_id)
        newest = newest_attempt(run_dir)
        if not newest:
            return RunState(run_id, name, "queued")
        numbers = range(1, newest + 1)
        exits = {n: read_json(run_dir / "attempts" / str(n) / "exit.json") for n in numbers}
        finished = [n for n, verdict in exits.items() if verdict and verdict.get("cause") == "ok"]
        number = finished[0] if finished else newest
        spent = sum(_spent(run_dir / "attempts" / str(n), verdict) for n, verdict in exits.items())
        return _state(run_dir, run_id, name, number, exits[number], spent)

    def states(self, run_ids: Iterable[str]) -> list[RunState]:
        return [self.state(run_id) for run_id in run_ids]

    # --- what people type

    def resolve_run(self, text: str) -> str:
        """The run id that an id, a name or the beginning of one stands for. Raises ValueError if none or several."""
        names = {run_id: (read_json(self.run_dir(run_id) / "run.json") or {}).get("name", "") for run_id in self.runs()}
        for matches in (
            [r for r in names if r == text],
            [r for r, name in names.items() if name == text],
            [r for r, name in names.items() if text and (r.startswith(text) or name.startswith(text))],
        ):
            if len(matches) > 1:
                shown = ", ".join(f"{r} ({names[r]})" for r in matches[:8]) + (", ..." if len(matches) > 8 else "")
                raise ValueError(f"{text} stands for {len(matches)} runs: {shown}. Type the id of one.")
            if matches:
                return matches[0]
        raise ValueError(f"There is no run {text} in {self.root}. `python -m sweeps status --all` lists all.")

    def resolve_sweep(self, text: str) -> Sweep:
        """The sweep that an id, its beginning, or the name of a study (then its newest sweep) stands for."""
        sweeps = self.sweeps()
        exact = [s for s in sweeps if text == s.sweep_id] or [s for s in sweeps if text == s.info.get("study")][:1]
        matches = exact or [s for s in sweeps if text and s.sweep_id.startswith(text)]
        if len(matches) > 1:
            raise ValueError(
                f"{text} begins {len(matches)} sweeps: {', '.join(s.sweep_id for s in matches)}. Type more."
            )
        if not matches:
            known = ", ".join(s.sweep_id for s in sweeps[:8]) or "none yet"
            raise ValueError(f"There is no sweep {text} in {self.root}. Sweeps, newest first: {known}.")
        return matches[0]


def _check_same_run(run_id: str, before: str, after: str) -> None:
    import yaml

    one, other = (identity(yaml.safe_load(text) or {}) for text in (before, after))
    if one != other:
        keys = sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))
        raise ValueError(
            f"Run {run_id} is on the ledger with another config: {', '.join(keys)} differ. An id names one config. "
            f"If runs/{run_id}/config.yaml was edited, undo that or delete runs/{run_id}."
        )


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        return []


def _state(
    run_dir: Path, run_id: str, name: str, number: int, verdict: dict[str, Any] | None, spent: float
) -> RunState:
    path = run_dir / "attempts" / str(number)
    job, beat = read_json(path / "job.json") or {}, read_json(path / "heartbeat.json") or {}
    now = time.time()
    heard = beat.get("time", job.get("started"))
    state: State
    if verdict is not None:
        state = _ended(str(verdict.get("cause")))
    else:
        state = "running" if _is_running(run_dir, job, heard, now) else "lost"
    step, steps = int(beat.get("step", 0)), int(beat.get("steps", 0))
    return RunState(
        run_id, name, state, number, step, steps, str(beat.get("phase", "")), beat.get("accuracy"),
        cause=str(verdict.get("cause")) if verdict else "",
        message=str(verdict.get("message") or "") if verdict else _LOST if state == "lost" else "",
        seconds=spent,
        started=job.get("started"),
        heartbeat_age=now - heard if state == "running" and heard else None,
        eta=_eta(beat, now) if state == "running" else None,
        log=path / "log.txt",
    )  # fmt: skip


_LOST = "the process is gone without a word (killed?)"


def _spent(path: Path, verdict: Mapping[str, Any] | None) -> float:
    """Seconds of an attempt: what it said at its end, else the time from its start to its last sign of life."""
    if verdict is not None:
        return float(verdict.get("seconds") or 0)
    started = (read_json(path / "job.json") or {}).get("started")
    heard = (read_json(path / "heartbeat.json") or {}).get("time")
    return max(0.0, heard - started) if started and heard else 0.0


def _ended(cause: str) -> State:
    if cause == "ok":
        return "finished"
    if cause == "pruned":
        return "pruned"
    if cause == "diverged":
        return "diverged"
    return "preempted" if cause in ("preempted", "time_limit") else "failed"


def _is_running(run_dir: Path, job: Mapping[str, Any], heard: float | None, now: float) -> bool:
    """Of an attempt that left no exit.json: is its process still at it?"""
    alive = lock.is_alive(job) if job else None
    held = lock.lock_is_held(run_dir / "lock")
    if alive is False or held is False:
        return False
    # Neither the process nor the lock can be seen from here: believe a fresh heartbeat.
    return bool(alive or held or (heard is not None and now - heard < SILENT_S))


def _eta(beat: Mapping[str, Any], now: float) -> float | None:
    """Seconds until the last step at the pace since the first step of this attempt; None before two steps."""
    origin = beat.get("origin") or {}
    done = beat.get("step", 0) - origin.get("step", beat.get("step", 0))
    if done <= 0:
        return None
    pace = (beat["time"] - origin["time"]) / done
    return max(0.0, (beat["steps"] - beat["step"]) * pace - (now - beat["time"]))
