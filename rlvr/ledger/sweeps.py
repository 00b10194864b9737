"""The entry point of the ledger: all runs and sweeps and their states, read from `runs/`, without an index or a daemon.

A sweep is sweep.json, which says why it was launched, and manifest.jsonl, with a line {run_id, name, arm, group_id,
seed, overrides, index} for each of its runs. A file that is damaged, or of another format, affects only its run or
sweep, which reports it in a line.
"""

import contextlib
import functools
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout, state, terminal
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.files import (
    make_private,
    private_mode,
    read_json,
    read_json_lines,
    remove,
    write_atomically,
    write_json,
    write_text,
)
from rlvr.ledger.identity import NOT_IDENTITY, identity
from rlvr.ledger.lock import holder_record, lock_is_held
from rlvr.ledger.runs import FORMAT, Unreadable, check_format, flatten, parse_yaml, read_info, read_private, write_run
from rlvr.ledger.state import RunState

NO_STUDY = "main"  # the study of runs that were launched without a study and without a name
SEARCH, EVALUATION = "search", "evaluation"  # the studies of searches and of rlvr.evaluate, if none is named
OWN_STUDIES = (NO_STUDY, SEARCH, EVALUATION)  # the studies without a file in sweeps/
TUNING = "tuning"  # the `stage`, in a manifest, of runs that tune a value for other runs
FOUND_AT = ("config_dirs", "import_paths")  # keys of run.json: where the launch found a run's options and its code


@dataclass(frozen=True)
class Sweep:
    """A set of runs, and why they were launched."""

    sweep_id: str
    info: Mapping[str, Any]  # sweep.json; {} if it cannot be read
    runs: tuple[Mapping[str, Any], ...]  # manifest.jsonl
    problems: tuple[str, ...] = ()  # what cannot be read of it, a line each

    @functools.cached_property
    def run_ids(self) -> list[str]:
        return list(dict.fromkeys(run["run_id"] for run in self.runs))

    @functools.cached_property
    def trials(self) -> Mapping[str, int]:
        """{run id: number of the trial that made the run}, for a search."""
        return {run["run_id"]: run["trial"] for run in self.runs if "trial" in run}

    @property
    def study(self) -> str:
        return str(self.info.get("study") or "")

    @property
    def name(self) -> str:
        """The name that its launch gave it (`name=`)."""
        return str(self.info.get("name") or "")

    @property
    def question(self) -> str:
        """The question of its study, from the study's file at the time of the launch."""
        return str(self.info.get("question") or "")

    @property
    def command(self) -> str:
        """The command that launched it, as typed. It may contain a password (rlvr/ledger/tags.py hides it)."""
        return str(self.info.get("command") or "")

    @property
    def created(self) -> float:
        """Time of creation in seconds since the epoch; 0 if it is not known."""
        created = self.info.get("created")
        return float(created) if isinstance(created, int | float) else 0.0


def grows(info: Mapping[Any, Any]) -> bool:
    """Whether later runs depend on the results of earlier ones (sweeps/growing). info: of sweep.json, or a config."""
    return bool(info.get("until") or info.get("tune"))


def sweep_id(study: str, run_ids: Iterable[str]) -> str:
    """8 hexadecimal digits that identify a set of runs of a study."""
    return hashlib.sha256("\n".join([study, *sorted(run_ids)]).encode()).hexdigest()[:8]


def _keep_aside(path: Path, damage: str) -> None:
    """Copy a damaged file before it is replaced, readable by its owner only, and print a line about it."""
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    with write_atomically(kept) as aside:
        aside.touch(mode=private_mode())
        shutil.copyfile(path, aside)
    print(f"{path} is written anew: {damage}. What stood there is kept as {kept.name}.", file=sys.stderr, flush=True)


class Ledger:
    """The runs and sweeps under `home`/runs."""

    def __init__(self, home: Path | str) -> None:
        self.home = Path(home)
        self.root = layout.runs(self.home)
        self.created_runs: set[str] = set()  # ids of the runs that this object, and no other command, has created
        # Of the sweeps that this object wrote: `_version` of sweep.json.
        self._recorded: dict[str, tuple[int, int]] = {}

    # --- writing

    def create_run(self, run_id: str, config_yaml: str, info: Mapping[str, Any]) -> Path:
        """Write a run to the ledger; harmless when repeated. info: the content of run.json.

        Settings outside a run's identity (cluster, tracker, where its code is found, ...) may differ from those on
        disk: those of the newest launch replace them, until the run is finished. Raises ValueError if the id already
        belongs to another run, or to one of another format.
        """
        target = self.run_dir(run_id)
        if not layout.config(target).exists() and self._create(target, config_yaml, info):
            self.created_runs.add(run_id)
            return target
        if read_json(layout.info(target)) is None:  # the directory was created by something else, or is damaged
            write_json(layout.info(target), {**info, "format": FORMAT}, private=True)
        recorded = read_info(target)
        try:
            before = layout.config(target).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):  # missing, or damaged: it may be cut within a character
            before = None
        if before is not None and before != config_yaml and not _is_same_run(run_id, before, config_yaml):
            before = None
        newest = {**recorded.fields, **{key: info[key] for key in FOUND_AT if key in info}}
        if before == config_yaml and recorded.fields == newest:
            return target
        if before is None or self.state(run_id).state is not State.FINISHED:
            write_text(layout.config(target), config_yaml, private=True)
            write_json(layout.info(target), newest, private=True)
        return target

    def _create(self, target: Path, config_yaml: str, info: Mapping[str, Any]) -> bool:
        """Write the whole directory in one step. False if `target` exists already."""
        make_private(self.root)
        try:
            with write_atomically(target, new=True) as aside:
                aside.mkdir()
                write_run(aside, config_yaml, info, durable=False)  # all of it goes to disk on exit
        except FileExistsError:
            return False
        return True

    def record_sweep(self, sweep_id: str, info: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Path:
        """Write a sweep to the ledger; if it exists already, it becomes the newest.

        manifest.jsonl is written before sweep.json, by which readers find the sweep. A damaged file is
        copied before it is replaced: it may name runs in lines that a person can repair.
        """
        target = self.sweep_dir(sweep_id)
        make_private(self.root)
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

    def withdraw_sweep(self, sweep_id: str) -> None:
        """Delete a sweep that its launch could not start, and the runs that this object created and that never began.

        A sweep that another command has recorded since is kept, and so are runs that any sweep contains.
        """
        target = self.sweep_dir(sweep_id)
        if target.exists() and _version(layout.sweep_info(target)) == self._recorded.get(sweep_id):
            remove(target)
        needed = {run_id for sweep in self.sweeps() for run_id in sweep.run_ids}
        for run_id in self.created_runs - needed:
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
        """All sweeps, by the time of their last launch, newest first."""
        launched = dict[Path, int]()  # nanoseconds since the epoch
        for directory in layout.sweeps(self.home).glob("*"):
            try:
                launched[directory] = layout.sweep_info(directory).stat().st_mtime_ns
            except PermissionError:  # private to another user: listed, as what cannot be read
                launched[directory] = 0
            except (FileNotFoundError, NotADirectoryError):  # no sweep, or removed in this moment
                continue
        return [self._sweep(directory) for directory in sorted(launched, key=launched.__getitem__, reverse=True)]

    def sweep(self, sweep_id: str) -> Sweep:
        """The sweep with exactly this id. Raises ValueError if there is none."""
        if not layout.sweep_info(self.sweep_dir(sweep_id)).exists():
            raise ValueError(f"There is no sweep {sweep_id} in {self.root}. `python -m sweeps status --all` lists all.")
        return self._sweep(self.sweep_dir(sweep_id))

    def _sweep(self, directory: Path) -> Sweep:
        path, name = layout.sweep_info(directory), directory.name
        what, problems = f"sweep {name}", list[str]()
        try:
            info = read_private(path, what)
        except Unreadable as error:  # and so is its manifest
            return Sweep(name, {}, (), (str(error),))
        try:
            check_format(info, what, path)
        except Unreadable as error:
            if info is not None:  # of another version, and so is its manifest
                return Sweep(name, {}, (), (str(error),))
            problems.append(str(error))
        lines, damaged = read_json_lines(layout.manifest(directory), "run_id")
        if damaged:
            problems.append(f"{what}: {', '.join(damaged)} in {layout.manifest(directory)}: left out.")
        return Sweep(name, info or {}, tuple(lines), tuple(problems))

    def state(self, run_id: str) -> RunState:
        """The state of a run, from its attempts."""
        return state.read(self.run_dir(run_id))

    def states(self, run_ids: Iterable[str]) -> list[RunState]:
        return [self.state(run_id) for run_id in run_ids]

    def waiting_here(self) -> set[str]:
        """The runs that launches at work on this machine will still start. Of a launch that has not signed its lock
        with its runs (a search, which learns them one by one) these are all runs of the sweep.
        """
        run_ids: set[str] = set()
        for sweep in self.sweeps():
            for path in filter(lock_is_held, layout.launch_locks(self.sweep_dir(sweep.sweep_id))):
                launch = holder_record(path)
                if not launch.get("stopping"):
                    run_ids.update(launch.get("runs", sweep.run_ids))
        return run_ids

    # --- runs and sweeps as people type them

    def resolve_run(self, text: str) -> str:
        """The id of the run that a text stands for: an id or a name, or the beginning of one, also as `runs/ID/`.

        If runs of several sweeps have the same name, it stands for the one in the newest sweep. Raises ValueError if no
        run matches, or several.
        """
        text = text.removeprefix("runs/").removesuffix("/")  # as a shell completes the directory
        names = {run_id: self._name(run_id) for run_id in self.runs()}
        for matches in self._matches(text, names):
            if len(matches) > 1:
                shown = ", ".join(f"{run_id} ({names[run_id]})" for run_id in matches[:8])
                shown += ", ..." if len(matches) > 8 else ""
                raise ValueError(f"{text} stands for {len(matches)} runs: {shown}. Type the id of one.")
            if matches:
                return matches[0]
        raise ValueError(f"There is no run {text} in {self.root}. `python -m sweeps status --all` lists all.")

    def _matches(self, text: str, names: Mapping[str, str]) -> Iterator[list[str]]:
        """The runs that a text may stand for, closest first; sweeps are read only if it is no run. names: by id."""
        yield [run_id for run_id in names if run_id == text]
        namesakes = [run_id for run_id, name in names.items() if text and name == text]
        yield self._in_newest_sweep(namesakes) if len(namesakes) > 1 else namesakes
        yield [i for i, name in names.items() if text and (i.startswith(text) or name.startswith(text))]
        yield [run_id for sweep in self.resolve_sweeps(text)[:1] for run_id in sweep.run_ids if run_id in names]

    def _in_newest_sweep(self, run_ids: Sequence[str]) -> list[str]:
        """The runs among these that are in the newest sweep with any of them; all of them if no sweep has any."""
        for sweep in self.sweeps():
            if runs_of_sweep := [run_id for run_id in run_ids if run_id in sweep.run_ids]:
                return runs_of_sweep
        return list(run_ids)

    def names(self) -> dict[str, str]:
        """{run id: name} of every run that can be read."""
        names = {run_id: self._name(run_id) for run_id in self.runs()}
        return {run_id: name for run_id, name in names.items() if name}

    def _name(self, run_id: str) -> str:
        """The name of a run; "" if it cannot be read (it can then be named by its id)."""
        try:
            return read_info(self.run_dir(run_id)).name
        except Unreadable:
            return ""

    def resolve_sweeps(self, text: str) -> list[Sweep]:
        """All sweeps with this id, study or name, else the one whose id begins with it; [] if there is none."""
        exact = [sweep for sweep in self.sweeps() if text and text in (sweep.sweep_id, sweep.study, sweep.name)]
        with contextlib.suppress(ValueError):
            return exact or [self.resolve_sweep(text)]
        return []

    def resolve_sweep(self, text: str) -> Sweep:
        """As `find_sweep`, among the sweeps of this ledger."""
        return find_sweep(self.sweeps(), text)


class NoSweep(ValueError):
    """Raised when a text stands for no sweep."""


def find_sweep(sweeps: Sequence[Sweep], text: str) -> Sweep:
    """The sweep that a text stands for: an id, else a name or a study (its newest sweep), else the beginning of an id.

    sweeps: newest first. Raises NoSweep if none matches, ValueError if several do.
    """
    named = [sweep for sweep in sweeps if text and text == sweep.name]
    named = named or [sweep for sweep in sweeps if text and text == sweep.study]
    exact = [sweep for sweep in sweeps if text == sweep.sweep_id] or named[:1]
    matches = exact or [sweep for sweep in sweeps if text and sweep.sweep_id.startswith(text)]
    if len(matches) > 1:
        ids = ", ".join(sweep.sweep_id for sweep in matches)
        raise ValueError(f"{text} begins {len(matches)} sweeps: {ids}. Type more.")
    if not matches:
        known = ", ".join(sweep.name or sweep.sweep_id for sweep in sweeps[:8]) or "none yet"
        studies = [*dict.fromkeys(sweep.study for sweep in sweeps if sweep.study)]
        near = terminal.near(text, [word for sweep in sweeps for word in (sweep.name, sweep.study, sweep.sweep_id)])
        of_studies = f" Of studies: {', '.join(studies)}." if studies else ""
        raise NoSweep(f"There is no sweep {text} here.{near} Sweeps, newest first: {known}.{of_studies}")
    return matches[0]


def _version(path: Path) -> tuple[int, int] | None:
    """(inode, time), which differ after every atomic replacement of a file; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_same_run(run_id: str, before: str, after: str) -> bool:
    """Whether the config on the ledger (`before`) is that of the launch (`after`); False if it is cut or damaged.

    In that case the launch writes it again, since the id identifies it. Raises ValueError if it is the config of
    another run, or was edited.
    """
    try:
        content = parse_yaml(before)
    except ValueError:
        content = None
    launched: Mapping[str, Any] = parse_yaml(after) or {}
    if not isinstance(content, dict):
        return False
    recorded = cast("dict[str, Any]", content)
    recorded_identity, launched_identity = identity(recorded), identity(launched)
    if recorded_identity != launched_identity:
        if _lacks_keys(recorded, launched):
            return False
        all_keys = recorded_identity.keys() | launched_identity.keys()
        keys = sorted(key for key in all_keys if recorded_identity.get(key) != launched_identity.get(key))
        raise ValueError(
            f"Run {run_id} is on the ledger with another config: {', '.join(keys)} differ. An id names one config. "
            f"If runs/{run_id}/config.yaml was edited, undo that or delete runs/{run_id}."
        )
    return True


def _lacks_keys(recorded: Mapping[str, Any], launched: Mapping[str, Any]) -> bool:
    """Whether a config lacks keys of its identity, so that it was truncated. Half of a file may be valid YAML, too.

    A person who edits a config changes values instead.
    """
    decisive = {key: value for key, value in launched.items() if key not in NOT_IDENTITY}
    return bool(flatten(decisive).keys() - flatten(recorded).keys())
