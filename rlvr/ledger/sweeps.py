"""What is planned and how it stands, read from the files under `runs/`: no index, no daemon, nothing to repair.

runs/<run_id>/{config.yaml,run.json,lock}   attempts/<N>/{job,heartbeat,exit}.json, log.txt   (rlvr/ledger/attempt.py)
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
from typing import Any

from rlvr.ledger.files import read_json, write_json, write_text
from rlvr.ledger.identity import identity
from rlvr.ledger.state import RunState, read

FOUND_AT = ("config_dirs", "import_paths")  # of run.json: where the launch found a run's options and its code


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

        What has no part in a run's identity (cluster, tracker, where its code is found, ...) may differ: the newest
        launch decides it, until the run is finished.
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
        about = read_json(target / "run.json")
        newest = {**(about or info), **{key: info[key] for key in FOUND_AT if key in info}}
        if about is None or (about != newest and self.state(run_id).state != "finished"):
            write_json(target / "run.json", newest)
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
        return read(self.run_dir(run_id), run_id)

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
