"""TensorBoard, W&B and trackio: what the shipper (`rlvr.tracker.mlflow`) follows journals into instead of MLflow.

Each tracker is one context manager that yields what sends a run's next records. It begins with the whole run, and
leaves each step in the tracker once, however often it is begun.
"""

# protobuf creates the classes of its modules on import
# pyright: reportAttributeAccessIssue=false

import contextlib
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.ledger import journal, layout, terminal
from rlvr.ledger.inputs import READER
from rlvr.ledger.lock import held_lock
from rlvr.ledger.runs import Unreadable, choices, flatten, lines_by_reason, read_config, read_info
from rlvr.ledger.sweeps import NO_STUDY, Ledger, Sweep
from rlvr.ledger.tags import as_text, as_value, params, status
from rlvr.tracker import store
from rlvr.tracker.cursor import Cursor, signature
from rlvr.tracker.shipper import Report

Value = bool | int | float | str | None
Send = Callable[[Sequence[journal.Record]], object]
EVENTS = "events.out.tfevents"  # TensorBoard recognises its files by the beginning of their names
MAX_TAG = 64  # characters that W&B allows
_DIRECTORIES = re.compile(r'(^|")/(?:[^"/]+/)*')


@dataclass(frozen=True)
class CopiedRun:
    """A run in the form in which it is copied to other trackers."""

    run_id: str
    name: str  # of this run, with its seed
    arm: str  # the name without the seed
    study: str
    tags: tuple[str, ...]  # of its sweeps: their names and tags
    # Frozen config, flat, and the chosen options; without directories, addresses and other circumstances.
    config: dict[str, Value]
    knobs: dict[str, Value]  # the part of it that a sweep varied


def copied_run(run_dir: Path, sweeps: Iterable[Sweep]) -> CopiedRun:
    """sweeps: all of the ledger. Raises Unreadable."""
    info, config = read_info(run_dir), read_config(run_dir)
    own_sweeps = [sweep for sweep in sweeps if run_dir.name in sweep.run_ids]
    options = choices(config)
    texts = {key: text for key, text in params(config)[0].items() if not key.startswith(READER)}
    flat = {**{key: as_value(str(_without_directories(text))) for key, text in texts.items()}, **options}
    values = {**flatten(config), **options}
    swept = dict.fromkeys(key for sweep in own_sweeps for key in (sweep.info.get("swept") or {}))
    tags = [tag for sweep in own_sweeps for tag in (sweep.name, *str(sweep.info.get("tags") or "").split(","))]
    return CopiedRun(
        run_id=run_dir.name,
        name=info.name or run_dir.name,
        arm=info.arm,
        study=info.study or NO_STUDY,
        tags=tuple(dict.fromkeys(filter(None, map(str.strip, tags)))),
        config=flat,
        knobs={key: _without_directories(values[key]) for key in swept if values.get(key) is not None},
    )


def _without_directories(value: object) -> Value:
    """A number; any other value as a text, or JSON, in which only the last part of each absolute path is left."""
    return value if isinstance(value, bool | int | float) else _DIRECTORIES.sub(r"\1", as_text(value))


# --- the trackers. out: the folder of their files


@contextlib.contextmanager
def to_tensorboard(run: CopiedRun, out: Path) -> Generator[Send]:
    """Begin the folder `out`/<study>/<run> anew: event files have no keys, so that a line written twice is drawn twice.

    What a sweep varied is shown under HPARAMS.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = out / run.study / f"{run.name.removesuffix(f'-{run.run_id[:6]}')}-{run.run_id[:6]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Of another name than the file before: a TensorBoard that has that one open reads the new one from its beginning.
    with (folder / f"{EVENTS}.{time.time_ns()}.rlvr").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        if run.knobs:
            knobs = {k: str(v) if isinstance(v, bool | str | None) else float(v) for k, v in run.knobs.items()}
            summary = hparams_pb(knobs, trial_id=run.run_id, start_time_secs=0.0)
            writer.write(Event(wall_time=0.0, summary=summary).SerializeToString())

        def send(records: Sequence[journal.Record]) -> None:
            for record in records:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
                event = Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
                writer.write(event.SerializeToString())
            writer.flush()

        yield send


@contextlib.contextmanager
def to_wandb(run: CopiedRun, out: Path) -> Generator[Send]:
    """Send the steps after the last one that W&B has; offline (WANDB_MODE), replace its files, for `wandb sync`.

    Raises ValueError if W&B rejects it, for example without a key.
    """
    import wandb

    out.mkdir(parents=True, exist_ok=True)
    for earlier in (out / "wandb").glob(f"offline-run-*-{run.run_id}"):
        shutil.rmtree(earlier)
    # What W&B records by itself describes this machine, not the one that trained.
    settings: dict[str, Any] = {f"x_disable_{topic}": True for topic in ("stats", "meta", "machine_info")}
    settings |= {"x_save_requirements": False, "disable_git": True, "save_code": False}
    settings |= {"console": "off", "silent": True}
    try:
        with wandb.init(
            project=run.study,
            id=run.run_id,
            name=run.name,
            group=run.arm,
            tags=[tag[:MAX_TAG] for tag in run.tags],
            config=run.config,
            dir=out,
            resume="allow",
            reinit="create_new",  # beside the other runs that go on
            settings=wandb.Settings(**settings),
        ) as wandb_run:
            starting_step = wandb_run.starting_step  # 0 for a new run, else the step after its last one

            def send(records: Sequence[journal.Record]) -> None:
                for record in records:
                    if record.step >= starting_step:
                        values = {**record.metrics, "_timestamp": record.time}
                        wandb_run.log(values, step=record.step, commit=True)

            yield send
    except wandb.Error as error:
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def to_trackio(run: CopiedRun, out: Path | None) -> Generator[Send]:
    """Write a run to trackio's local store. Each step has an id, so that trackio skips those that it has."""
    if out is not None:
        os.environ["TRACKIO_DIR"] = str(out)  # read when trackio is imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from trackio.sqlite_storage import SQLiteStorage

    yield lambda records: SQLiteStorage.bulk_log(
        run.study,
        run.name,
        [dict(record.metrics) for record in records],
        steps=[record.step for record in records],
        timestamps=[datetime.fromtimestamp(record.time, UTC).isoformat() for record in records],
        config={**run.config, "rlvr_arm": run.arm, "rlvr_tags": ",".join(run.tags)},
        log_ids=[f"{run.run_id}-{record.step}" for record in records],
        run_id=run.run_id,
    )


TRACKERS: Mapping[str, Callable[[CopiedRun, Any], AbstractContextManager[Send]]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "trackio": to_trackio,
}


# --- the shipper


class Copier:
    """Ships the runs of one home to one of these trackers, as `Shipper` does to MLflow. A run is open until its end.

    The cursor in mlflow.json has the signature of a journal that was sent to its end, and the run's state then: a run
    of which both are the same is not begun again. While a run is open, a lock keeps other passes from it.
    """

    def __init__(self, home: Path, uri: str) -> None:
        self.home = home.resolve()
        self.ledger = Ledger(self.home)
        self.uri = store.resolve(self.home, uri)
        self._tracker, _, folder = self.uri.partition(":")
        self._out = Path(folder) if folder else None
        self._open: dict[Path, tuple[contextlib.ExitStack, Send, journal.Follower]] = {}

    def ship(self, run_dirs: Iterable[Path]) -> Report:
        """One pass over the runs; never raises because of the tracker, which is left alone after its first error."""
        report, errors = Report(self.uri, tracker=self._tracker), list[Unreadable]()
        sweeps = self.ledger.sweeps()
        for directory in dict.fromkeys(run_dirs):
            state = self.ledger.state(directory.name)  # before the journal: what comes later is for the next pass
            goes_on = status(state.state) == "RUNNING"
            report.running += goes_on
            try:
                tags = {"rlvr.state": state.state.value, "rlvr.attempts": str(state.attempt)}
                self._ship_run(directory, sweeps, tags, report, goes_on=goes_on)
            except Unreadable as error:
                errors.append(error)
            except BlockingIOError:  # another process ships it
                continue
            except (ValueError, OSError, sqlite3.Error) as error:  # the last is trackio's
                report.error = terminal.one_line(error)
                break
        report.problems = {line: line for line in lines_by_reason(errors)}
        return report

    def _ship_run(
        self, directory: Path, sweeps: Sequence[Sweep], tags: dict[str, str], report: Report, *, goes_on: bool
    ) -> None:
        path, cursor = layout.journal(directory), Cursor.load(directory, self.uri)
        now = signature(path)
        if directory not in self._open and (now[0] == 0 or (now, tags) == (cursor.journal, cursor.tags)):
            return
        if directory not in self._open:
            run = copied_run(directory, sweeps)
            with contextlib.ExitStack() as begun:
                begun.enter_context(held_lock(layout.copy_lock(directory, self._tracker), 0, BlockingIOError()))
                send = begun.enter_context(TRACKERS[self._tracker](run, self._out))
                self._open[directory] = begun.pop_all(), send, journal.Follower(path)
        stack, send, follower = self._open.pop(directory)
        with stack:  # an error ends it: the next pass begins the run anew, as what was not sent would not come again
            before = follower.count
            follower.read()
            is_same = follower.count == before + len(follower.news)  # a journal whose beginning has changed
            if is_same and follower.news:
                send(sorted(follower.news, key=lambda record: record.step))
                report.shipped[directory.name] = len(follower.news)
            if is_same and goes_on:
                self._open[directory] = stack.pop_all(), send, follower
        if follower.news or directory not in self._open:
            # What an open run was sent may be in the tracker's memory only.
            cursor.journal, cursor.tags = (now, tags) if is_same and not goes_on else ([], {})
            cursor.save(directory, self.uri)
