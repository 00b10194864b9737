"""What the ledger says of a run or a sweep, put in MLflow's words: name, tags, params, status. Imports no mlflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.ledger.files import read_json
from rlvr.ledger.identity import NOT_IDENTITY, NOT_IDENTITY_OF_ENGINE

MAX_VALUE = 6000  # characters of a param or tag that MLflow keeps
AGAIN = ("preempted", "time_limit", "node", "busy")  # exits after which the run goes on by itself
_BAD_KEY = re.compile(r"[^A-Za-z0-9_\-. ]")
_SECRET = re.compile(r"((?:password|passwd|pwd|token|secret|api_key)=)[^&;\s]+", re.IGNORECASE)
_USER_INFO = re.compile(r"(\w://)[^/@\s]+@")


@dataclass(frozen=True)
class Sweep:
    """runs/sweeps/<sweep_id>: a set of runs."""

    directory: Path
    sweep_id: str
    study: str
    command: str
    created: float
    run_ids: tuple[str, ...]
    trials: Mapping[str, int]  # of a search: number of the trial that made the run, by run

    @property
    def name(self) -> str:
        return self.command.removeprefix("python -m rlvr.run ").strip() or self.study or self.sweep_id


def sweeps(home: Path) -> list[Sweep]:
    """Every sweep on the ledger, oldest first."""
    found: list[Sweep] = []
    for path in (home / "runs" / "sweeps").glob("*/sweep.json"):
        info = read_json(path)
        if info is not None:
            lines = list(_lines(path.parent / "manifest.jsonl"))
            ids = tuple(dict.fromkeys(str(line["run_id"]) for line in lines))
            trials = {str(line["run_id"]): int(line["trial"]) for line in lines if "trial" in line}
            name = str(info.get("sweep_id") or path.parent.name)
            study, command = info.get("study"), redact(str(info.get("command") or ""))
            found.append(Sweep(path.parent, name, str(study or ""), command, seconds(info.get("created")), ids, trials))
    return sorted(found, key=lambda sweep: (sweep.created, sweep.sweep_id))


def _lines(manifest: Path) -> Iterator[dict[str, Any]]:
    text = manifest.read_text(encoding="utf-8") if manifest.exists() else ""
    for line in text.split("\n")[:-1]:  # what follows the last newline is a write in progress
        yield json.loads(line)


def seconds(moment: object) -> float:
    """A moment of the ledger as seconds since the epoch; 0 if it is not a number."""
    return float(moment) if isinstance(moment, (int, float)) else 0.0


@dataclass(frozen=True)
class Run:
    """runs/<run_id> as the ledger describes it now."""

    directory: Path
    info: Mapping[str, Any]  # run.json
    attempts: int
    cause: str | None  # how the newest attempt ended; None if it has not
    ended: float  # seconds since the epoch, 0 if it has not
    host: str  # of the newest attempt

    @classmethod
    def open(cls, directory: Path) -> Run | None:
        """None if the directory holds no run.json (yet)."""
        info = read_json(directory / "run.json")
        if info is None:
            return None
        numbers = [int(p.name) for p in (directory / "attempts").glob("*") if p.name.isdigit()]
        newest = directory / "attempts" / str(max(numbers, default=0))
        job, end = read_json(newest / "job.json") or {}, read_json(newest / "exit.json") or {}
        host = str(job.get("host") or info.get("host") or "")
        return cls(directory, info, len(numbers), end.get("cause"), seconds(end.get("time")), host)

    @property
    def run_id(self) -> str:
        return str(self.info.get("run_id") or self.directory.name)

    @property
    def name(self) -> str:
        return str(self.info.get("name") or self.run_id)

    @property
    def study(self) -> str:
        return str(self.info.get("study") or "")

    @property
    def created(self) -> float:
        return seconds(self.info.get("created"))

    @property
    def status(self) -> str:
        """MLflow's word. A run that will go on by itself, or that waits for its first attempt, is RUNNING."""
        if self.cause is None or self.cause in AGAIN:
            return "RUNNING"
        return {"ok": "FINISHED", "pruned": "KILLED"}.get(self.cause, "FAILED")

    def tags(self, sweeps: Sequence[Sweep]) -> dict[str, str]:
        """Identity and circumstances: everything that may differ between attempts is here, never in a param."""
        info = self.info
        trials = [f"{s.sweep_id}/{s.trials[self.run_id]}" for s in sweeps if self.run_id in s.trials]
        tags = {
            "rlvr.run_id": self.run_id,
            "rlvr.group_id": info.get("group_id"),
            "rlvr.created": info.get("created"),
            "rlvr.git_sha": info.get("git_sha"),
            "rlvr.git_dirty": info.get("git_dirty"),
            "rlvr.host": self.host,
            "rlvr.attempts": self.attempts,
            "rlvr.sweeps": ",".join(s.sweep_id for s in sweeps),
            "rlvr.trial": ",".join(trials),
            "mlflow.source.name": redact(str(info.get("command") or "")),
            "mlflow.source.git.commit": info.get("git_sha"),
        }
        told = {name: as_text(value)[:MAX_VALUE] for name, value in tags.items() if value not in (None, "")}
        return {**told, "rlvr.cause": self.cause or ""}  # always: a retry takes back the cause of the attempt before

    def config(self) -> Mapping[str, Any]:
        """The frozen config."""
        import yaml  # not needed to say what is left to ship

        path = self.directory / "config.yaml"
        if not path.exists():
            return {}
        try:
            content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {error}") from error
        return content if isinstance(content, dict) else {}


def choice_tags(config: Mapping[str, Any]) -> dict[str, str]:
    """Hydra's group choices as tags: rlvr.loss=lad, rlvr.divergence=js."""
    chosen = config.get("choices") or {}
    return {f"rlvr.{_key(str(k).partition('@')[0])}": str(v) for k, v in chosen.items() if v is not None}


def params(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """(the config flattened with dots, names of the values that had to be cut at 6000 characters)."""
    # What may change between attempts is no param: those cannot be changed.
    fixed = {k: v for k, v in config.items() if k not in NOT_IDENTITY}
    places = {f"rollout.engine.{k}" for k in NOT_IDENTITY_OF_ENGINE}
    flat = {name: text for name, text in _flatten(fixed, "") if name not in places}
    cut = sorted(name for name, text in flat.items() if len(text) > MAX_VALUE)
    return {name: text[:MAX_VALUE] for name, text in flat.items()}, cut


def _flatten(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        name = f"{prefix}{_key(str(key))}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, name + ".")
        else:
            yield name[:250], as_text(value)


def as_text(value: object) -> str:
    """Text as it is; everything else as JSON, so that null, true and [1, 2] read the same everywhere."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _key(text: str) -> str:
    return _BAD_KEY.sub("_", text).strip(".") or "_"


def redact(text: str) -> str:
    """The text without user:password@ and without password=..., for people, logs and files."""
    return _SECRET.sub(r"\1***", _USER_INFO.sub(r"\1***@", text))
