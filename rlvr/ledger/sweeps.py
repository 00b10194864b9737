"""The door of the ledger: what is planned and how it stands, from the files under `runs/`: no index, no daemon.

A sweep is sweep.json, why, and manifest.jsonl, a line {run_id, name, arm, group_id, seed, overrides, index} for each of
its runs. A file that is damaged, or of another format, is a problem of its run or sweep, which says so in a line;
everything else goes on.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout, state
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, read_json_lines, remove, whole, write_json, write_text
from rlvr.ledger.identity import NOT_IDENTITY, identity
from rlvr.ledger.runs import FORMAT, Unreadable, check_format, flatten, parse_yaml, read_info, write_run
from rlvr.ledger.state import RunState

NO_STUDY = "main"  # where runs stand that belong to no study and have no name
SEARCH, EVALUATION = "search", "evaluation"  # studies of searches and of rlvr.evaluate, where no file is named
OWN_STUDIES = (NO_STUDY, SEARCH, EVALUATION)  # without a file
TUNING = "tuning"  # the `stage`, in a manifest, of runs that choose a value for others
FOUND_AT = ("config_dirs", "import_paths")  # of run.json: where the launch found a run's options and its code


@dataclass(frozen=True)
class Sweep:
    """A set of runs and why."""

    sweep_id: str
    info: Mapping[str, Any]  # sweep.json; {} where it cannot be read
    runs: tuple[Mapping[str, Any], ...]  # manifest.jsonl
    problems: tuple[str, ...] = ()  # what of it cannot be read, a line each

    @functools.cached_property
    def run_ids(self) -> list[str]:
        return list(dict.fromkeys(run["run_id"] for run in self.runs))

    @functools.cached_property
    def trials(self) -> Mapping[str, int]:
        """Of a search: number of the trial that made the run, by run."""
        return {run["run_id"]: run["trial"] for run in self.runs if "trial" in run}

    @property
    def study(self) -> str:
        return str(self.info.get("study") or "")

    @property
    def name(self) -> str:
        """What its launch called it (`name=`)."""
        return str(self.info.get("name") or "")

    @property
    def question(self) -> str:
        """Of the study, as its file asked it when it was launched."""
        return str(self.info.get("question") or "")

    @property
    def command(self) -> str:
        """What launched it, as it was typed: it may hold a password (rlvr/ledger/tags.py hides it)."""
        return str(self.info.get("command") or "")

    @property
    def created(self) -> float:
        """Seconds since the epoch; 0: not known."""
        created = self.info.get("created")
        return float(created) if isinstance(created, int | float) else 0.0


def grows(about: Mapping[Any, Any]) -> bool:
    """Do its next runs hang on the results of the ones before (sweeps/growing)? about: sweep.json, or a config."""
    return bool(about.get("until") or about.get("tune"))


def sweep_id(study: str, run_ids: Iterable[str]) -> str:
    """8 hexadecimal digits naming a set of runs of a study."""
    return hashlib.sha256("\n".join([study, *sorted(run_ids)]).encode()).hexdigest()[:8]


def _keep_aside(path: Path, damage: str) -> None:
    """Copy a damaged file before it is written anew, for its user alone to read, and say so."""
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    with whole(kept) as aside:
        aside.touch(mode=0o600)
        shutil.copyfile(path, aside)
    print(f"{path} is written anew: {damage}. What stood there is kept as {kept.name}.", file=sys.stderr, flush=True)


class Ledger:
    """The runs and sweeps under `home`/runs."""

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home)
        self.root = layout.runs(self.home)
        self.made: set[str] = set()  # ids of runs that were put there through this object, and by no other command
        self._recorded: dict[str, tuple[int, int]] = {}  # the same of sweeps, as `_version` of sweep.json knows them

    # --- writing

    def create_run(self, run_id: str, config_yaml: str, info: Mapping[str, Any]) -> Path:
        """Put a run on the ledger; harmless when repeated. `info`: what run.json is to say.

        What has no part in a run's identity (cluster, tracker, where its code is found, ...) may differ: the newest
        launch decides it, until the run is finished. Raises ValueError if the id already means another run, or one of
        another format.
        """
        target = self.run_dir(run_id)
        if not layout.config(target).exists() and self._create(target, config_yaml, info):
            self.made.add(run_id)
            return target
        if read_json(layout.info(target)) is None:  # a directory that something else began, or that was damaged
            write_json(layout.info(target), {**info, "format": FORMAT}, private=True)
        about = read_info(target)
        try:
            before = layout.config(target).read_text(encoding="utf-8")
        except FileNotFoundError:
            before = None
        if before is not None and before != config_yaml and not _is_same_run(run_id, before, config_yaml):
            before = None
        newest = {**about.fields, **{key: info[key] for key in FOUND_AT if key in info}}
        if before == config_yaml and about.fields == newest:
            return target
        if before is None or self.state(run_id).state is not State.FINISHED:
            write_text(layout.config(target), config_yaml, private=True)
            write_json(layout.info(target), newest, private=True)
        return target

    def _create(self, target: Path, config_yaml: str, info: Mapping[str, Any]) -> bool:
        """The whole directory in one step. False if something stands there already."""
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with whole(target, new=True) as aside:
                aside.mkdir()
                write_run(aside, config_yaml, info, durable=False)  # all of it is put on disk in one go
        except FileExistsError:
            return False
        return True

    def record_sweep(self, sweep_id: str, info: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Path:
        """Put a sweep on the ledger, or put it on top again. The runs are written before the file that names them.

        What stood in a damaged file is kept beside it: a line that a person can mend may name runs.
        """
        target = self.sweep_dir(sweep_id)
        target.mkdir(parents=True, exist_ok=True)
        is_ours = _version(layout.sweep_info(target)) == self._recorded.get(sweep_id)
        if damaged := read_json_lines(layout.manifest(target), "run_id")[1]:
            _keep_aside(layout.manifest(target), ", ".join(damaged))
        if layout.sweep_info(target).exists() and read_json(layout.sweep_info(target)) is None:
            _keep_aside(layout.sweep_info(target), "it is damaged")
        write_text(layout.manifest(target), "".join(json.dumps(run) + "\n" for run in runs), private=True)
        write_json(layout.sweep_info(target), {**info, "sweep_id": sweep_id, "format": FORMAT}, private=True)
        if is_ours and (version := _version(layout.sweep_info(target))):
            self._recorded[sweep_id] = version
        return target

    def forget(self, sweep_id: str) -> None:
        """Take back a sweep that its launch could not start, and the runs that were made for it and never began.

        What another command has put there stays: a sweep that it has recorded too, and runs that a sweep names.
        """
        target = self.sweep_dir(sweep_id)
        if target.exists() and _version(layout.sweep_info(target)) == self._recorded.get(sweep_id):
            remove(target)
        named = {run_id for sweep in self.sweeps() for run_id in sweep.run_ids}
        for run_id in self.made - named:
            if self.run_dir(run_id).is_dir() and not newest_attempt(self.run_dir(run_id)):
                remove(self.run_dir(run_id))

    # --- reading

    def run_dir(self, run_id: str) -> Path:
        return layout.run(self.home, run_id)

    def sweep_dir(self, sweep_id: str) -> Path:
        return layout.sweep(self.home, sweep_id)

    def runs(self) -> list[str]:
        """Ids of all runs, sorted."""
        return layout.run_ids(self.home)

    def sweeps(self) -> list[Sweep]:
        """All sweeps, the one that was launched last first."""
        files = [layout.sweep_info(path) for path in layout.sweeps(self.home).glob("*")]
        found = sorted((f for f in files if f.exists()), key=lambda f: f.stat().st_mtime_ns, reverse=True)
        return [self._sweep(file.parent) for file in found]

    def sweep(self, sweep_id: str) -> Sweep:
        """One sweep by its exact id. Raises ValueError if there is none."""
        if not layout.sweep_info(self.sweep_dir(sweep_id)).exists():
            raise ValueError(f"There is no sweep {sweep_id} in {self.root}. `python -m sweeps status --all` lists all.")
        return self._sweep(self.sweep_dir(sweep_id))

    def _sweep(self, directory: Path) -> Sweep:
        path, name = layout.sweep_info(directory), directory.name
        info = read_json(path)
        problems: list[str] = []
        try:
            check_format(info, f"sweep {name}", path)
        except Unreadable as error:
            if info is not None:  # of another version: its manifest, too
                return Sweep(name, {}, (), (str(error),))
            problems.append(str(error))
        lines, damaged = read_json_lines(layout.manifest(directory), "run_id")
        if damaged:
            problems.append(f"sweep {name}: {', '.join(damaged)} in {layout.manifest(directory)}: left out.")
        return Sweep(name, info or {}, tuple(lines), tuple(problems))

    def state(self, run_id: str) -> RunState:
        """How a run stands, from its attempts."""
        return state.read(self.run_dir(run_id))

    def states(self, run_ids: Iterable[str]) -> list[RunState]:
        return [self.state(run_id) for run_id in run_ids]

    # --- what people type

    def resolve_run(self, text: str) -> str:
        """The run id that an id, a name or the beginning of one, or any as `runs/ID`, stands for. Raises ValueError if
        none or several.

        Of runs that have one name, in sweeps of another time, it stands for the one of the newest sweep.
        """
        text = text.removeprefix("runs/")
        names = {run_id: self._name(run_id) for run_id in self.runs()}
        namesakes = [r for r, name in names.items() if name == text]
        for matches in (
            [r for r in names if r == text],
            self._in_newest_sweep(namesakes) if len(namesakes) > 1 else namesakes,
            [r for r, name in names.items() if text and (r.startswith(text) or name.startswith(text))],
        ):
            if len(matches) > 1:
                shown = ", ".join(f"{r} ({names[r]})" for r in matches[:8]) + (", ..." if len(matches) > 8 else "")
                raise ValueError(f"{text} stands for {len(matches)} runs: {shown}. Type the id of one.")
            if matches:
                return matches[0]
        raise ValueError(f"There is no run {text} in {self.root}. `python -m sweeps status --all` lists all.")

    def _in_newest_sweep(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the newest sweep that has any of them; all, if none has."""
        for sweep in self.sweeps():
            if here := [run_id for run_id in run_ids if run_id in sweep.run_ids]:
                return here
        return list(run_ids)

    def names(self) -> dict[str, str]:
        """The name of every run that has one, by id."""
        found = {run_id: self._name(run_id) for run_id in self.runs()}
        return {run_id: name for run_id, name in found.items() if name}

    def _name(self, run_id: str) -> str:
        """ "" of a run that cannot be read: its id finds it all the same."""
        try:
            return read_info(self.run_dir(run_id)).name
        except Unreadable:
            return ""

    def resolve_sweeps(self, text: str) -> list[Sweep]:
        """All sweeps of a study or of a name, or the one that an id or its beginning stands for; [] if none does."""
        exact = [s for s in self.sweeps() if text and text in (s.sweep_id, s.study, s.name)]
        with contextlib.suppress(ValueError):
            return exact or [self.resolve_sweep(text)]
        return []

    def resolve_sweep(self, text: str) -> Sweep:
        """As `the_sweep`, of this ledger."""
        return the_sweep(self.sweeps(), text)


class NoSweep(ValueError):
    """No sweep is called so."""


def the_sweep(sweeps: Sequence[Sweep], text: str) -> Sweep:
    """The sweep that an id, its beginning, a name, or else a study (the newest sweep of it) stands for.

    sweeps: newest first. Raises NoSweep if there is none, ValueError if there are several.
    """
    called = [s for s in sweeps if text and text == s.name] or [s for s in sweeps if text and text == s.study]
    exact = [s for s in sweeps if text == s.sweep_id] or called[:1]
    matches = exact or [s for s in sweeps if text and s.sweep_id.startswith(text)]
    if len(matches) > 1:
        raise ValueError(f"{text} begins {len(matches)} sweeps: {', '.join(s.sweep_id for s in matches)}. Type more.")
    if not matches:
        known = ", ".join(s.name or s.sweep_id for s in sweeps[:8]) or "none yet"
        raise NoSweep(f"There is no sweep {text} here. Sweeps, newest first: {known}.")
    return matches[0]


def _version(path: Path) -> tuple[int, int] | None:
    """Differs after every write of a file that is replaced in one step; None: there is no file."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_mtime_ns


def _is_same_run(run_id: str, before: str, after: str) -> bool:
    """False of a config on the ledger that was cut or damaged: the launch puts it back, for the id names it.

    Raises ValueError if it is another run's, or was edited.
    """
    try:
        there = parse_yaml(before)
    except ValueError:
        there = None
    written: Mapping[str, Any] = parse_yaml(after) or {}
    if not isinstance(there, dict):
        return False
    known = cast("dict[str, Any]", there)
    if _lacks(known, written):
        return False
    one, other = identity(known), identity(written)
    if one != other:
        keys = sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))
        raise ValueError(
            f"Run {run_id} is on the ledger with another config: {', '.join(keys)} differ. An id names one config. "
            f"If runs/{run_id}/config.yaml was edited, undo that or delete runs/{run_id}."
        )
    return True


def _lacks(there: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Does a config lack a key that it was written with? Half of a file may be YAML too; who edits changes values."""
    decisive = {key: value for key, value in written.items() if key not in NOT_IDENTITY}
    return bool(flatten(decisive).keys() - flatten(there).keys())
