"""Copies of journals in other trackers: `python -m rlvr.tracker.copies tensorboard|wandb|trackio [--out DIR] [...]`.

Each tracker is one function that writes one run. It always gets the whole run, and leaves each step in the tracker
once, however often it is called. Needs `pip install 'rlvr[tensorboard]'`, `'rlvr[wandb]'` or `'rlvr[trackio]'`.
"""

# protobuf creates the classes of its modules on import
# pyright: reportAttributeAccessIssue=false

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.ledger import journal, layout, terminal
from rlvr.ledger.files import write_atomically
from rlvr.ledger.inputs import READER
from rlvr.ledger.runs import Unreadable, choices, flatten, lines_by_reason, read_config, read_info
from rlvr.ledger.sweeps import NO_STUDY, Ledger, Sweep
from rlvr.ledger.tags import as_text, as_value, params
from rlvr.tracker.mlflow import run_dirs

Value = bool | int | float | str | None
EVENTS = "events.out.tfevents.0.rlvr"  # TensorBoard recognises its files by the beginning of this name
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
    records: list[journal.Record]  # by step, each step once: what the first attempt measured


def copied_run(run_dir: Path, sweeps: Iterable[Sweep]) -> CopiedRun:
    """A run and its journal. sweeps: all of the ledger. Raises Unreadable."""
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
        records=sorted(journal.Follower(layout.journal(run_dir)).all(), key=lambda record: record.step),
    )


def _without_directories(value: object) -> Value:
    """A number; any other value as a text, or JSON, in which only the last part of each absolute path is left."""
    return value if isinstance(value, bool | int | float) else _DIRECTORIES.sub(r"\1", as_text(value))


# --- the trackers: a function that writes a run to `out`, the folder of the tracker's files (None: its usual one)


def to_tensorboard(run: CopiedRun, out: Path | None) -> None:
    """Replace the folder `out`/<study>/<run>: event files have no keys, so a line written twice would be drawn twice.

    What a sweep varied is shown under HPARAMS.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    assert out is not None
    with write_atomically(out / run.study / f"{run.name}-{run.run_id[:6]}", durable=False) as aside:
        aside.mkdir(parents=True)
        with (aside / EVENTS).open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(file_version="brain.Event:2").SerializeToString())
            if run.knobs:
                knobs = {k: str(v) if isinstance(v, bool | str | None) else float(v) for k, v in run.knobs.items()}
                summary = hparams_pb(knobs, trial_id=run.run_id, start_time_secs=0.0)
                writer.write(Event(wall_time=0.0, summary=summary).SerializeToString())
            for record in run.records:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
                event = Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
                writer.write(event.SerializeToString())
            writer.flush()


def to_wandb(run: CopiedRun, out: Path | None) -> None:
    """Send the steps after the last one that W&B has; offline (WANDB_MODE), replace its files, for `wandb sync`.

    Raises ValueError if W&B rejects it, for example without a key.
    """
    import wandb

    out = out or Path(os.environ.get("WANDB_DIR") or ".")
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
            settings=wandb.Settings(**settings),
        ) as wandb_run:
            for record in run.records:
                if record.step >= wandb_run.starting_step:  # 0 for a new run, else the step after its last one
                    wandb_run.log({**record.metrics, "_timestamp": record.time}, step=record.step)
    except wandb.Error as error:
        raise ValueError(f"W&B: {error}") from error


def to_trackio(run: CopiedRun, out: Path | None) -> None:
    """Write a run to trackio's local store. Each step has an id, so that trackio skips those that it has."""
    if out is not None:
        os.environ["TRACKIO_DIR"] = str(out.resolve())  # read when trackio is imported
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.bulk_log(
        run.study,
        run.name,
        [dict(record.metrics) for record in run.records],
        steps=[record.step for record in run.records],
        timestamps=[datetime.fromtimestamp(record.time, UTC).isoformat() for record in run.records],
        config={**run.config, "rlvr_arm": run.arm, "rlvr_tags": ",".join(run.tags)},
        log_ids=[f"{run.run_id}-{record.step}" for record in run.records],
        run_id=run.run_id,
    )


# The names of the trackers are those of their Python packages, and of the extras of rlvr that install them.
TRACKERS: Mapping[str, Callable[[CopiedRun, Path | None], None]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "trackio": to_trackio,
}


def _how_to_view(tracker: str, out: Path | None) -> str:
    if tracker == "tensorboard":
        return f"tensorboard --logdir {out}"
    if tracker == "trackio":
        return "trackio show" if out is None else f"TRACKIO_DIR={out} trackio show"
    if os.environ.get("WANDB_MODE") != "offline":
        return "https://wandb.ai, or your own server"
    return f"wandb sync {(out or Path(os.environ.get('WANDB_DIR') or '.')) / 'wandb'}/offline-run-*"


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        prog="python -m rlvr.tracker.copies",
        description="Copy the journals of runs to another tracker. Safe to repeat.",
    )
    parser.add_argument("tracker", choices=tuple(TRACKERS), help="wandb: with WANDB_API_KEY, or WANDB_MODE=offline")
    parser.add_argument(
        "--out", type=Path, help="folder of its files (default: the tracker's own; for tensorboard it must be typed)"
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument(
        "--sweep", nargs="+", default=[], metavar="NAME", help="only the runs of these sweeps, by name or id"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all selected runs. Exit code: 0, or 1 if some run cannot be read, or 2 for bad input."""
    options = _parser().parse_args(arguments)
    tracker: str = options.tracker
    if tracker == "tensorboard" and options.out is None:
        _parser().error("tensorboard needs --out, the folder that `tensorboard --logdir` is to read")
    try:
        home = terminal.home(options.home)
        directories, sweeps = run_dirs(home, options.sweep), Ledger(home).sweeps()
        errors = list[Unreadable]()
        for directory in directories:
            try:
                TRACKERS[tracker](copied_run(directory, sweeps), options.out)
            except Unreadable as error:
                errors.append(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != tracker:
            raise
        print(f"error: {tracker} is not installed: pip install 'rlvr[{tracker}]'", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    for line in lines_by_reason(errors):
        print(line, file=sys.stderr)
    print(f"{len(directories) - len(errors)} runs: {_how_to_view(tracker, options.out)}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
