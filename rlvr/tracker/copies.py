"""Copying the journals of runs to other trackers: what the commands for TensorBoard, W&B and trackio share.

Each of them is one function that writes one run (`Target.write`). It always gets the whole run, and must leave each
step in the tracker once, however often it is called.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr.ledger import journal, layout, terminal
from rlvr.ledger.inputs import READER
from rlvr.ledger.runs import Unreadable, choices, flatten, lines_by_reason, read_config, read_info
from rlvr.ledger.sweeps import NO_STUDY, Ledger, Sweep
from rlvr.ledger.tags import as_text, as_value, params
from rlvr.tracker.mlflow import run_dirs

Value = bool | int | float | str | None
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


@dataclass(frozen=True)
class Target:
    """Another tracker. write: writes one run, with the options of the command line. view: how to look at the result."""

    name: str  # of its Python package, and of the extra of rlvr that installs it
    about: str  # description of the command
    write: Callable[[CopiedRun, argparse.Namespace], None]
    view: Callable[[argparse.Namespace], str]
    out: str  # help of --out
    usual_out: Path | None = None  # default of --out; None: it has to be typed


def copied_run(run_dir: Path, sweeps: Iterable[Sweep]) -> CopiedRun:
    """A run and its journal. sweeps: all of the ledger. Raises Unreadable."""
    info, config = read_info(run_dir), read_config(run_dir)
    own_sweeps = [sweep for sweep in sweeps if run_dir.name in sweep.run_ids]
    options = choices(config)
    texts = {key: text for key, text in params(config)[0].items() if not key.startswith(READER)}
    flat = {**{key: as_value(_without_directories(text)) for key, text in texts.items()}, **options}
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
        knobs={key: _plain_value(values[key]) for key in swept if values.get(key) is not None},
        records=sorted(journal.Follower(layout.journal(run_dir)).all(), key=lambda record: record.step),
    )


def _plain_value(value: object) -> Value:
    return value if isinstance(value, bool | int | float) else _without_directories(as_text(value))


def _without_directories(text: str) -> str:
    """A text, or JSON, in which only the last part of each absolute path is left."""
    return _DIRECTORIES.sub(r"\1", text)


def main(target: Target, arguments: Sequence[str] | None = None) -> int:
    """Write all selected runs. Exit code: 0, or 1 if some run cannot be read, or 2 for bad input."""
    parser = terminal.Parser(
        prog=f"python -m rlvr.tracker.{target.name}", description=f"{target.about} Safe to repeat."
    )
    parser.add_argument(
        "--out", type=Path, required=target.usual_out is None, default=target.usual_out, help=target.out
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument(
        "--sweep", nargs="+", default=[], metavar="NAME", help="only the runs of these sweeps, by name or id"
    )
    options = parser.parse_args(arguments)
    try:
        home = terminal.home(options.home)
        directories, sweeps = run_dirs(home, options.sweep), Ledger(home).sweeps()
        errors = list[Unreadable]()
        for directory in directories:
            try:
                target.write(copied_run(directory, sweeps), options)
            except Unreadable as error:
                errors.append(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != target.name:
            raise
        print(f"error: {target.name} is not installed: pip install 'rlvr[{target.name}]'", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    for line in lines_by_reason(errors):
        print(line, file=sys.stderr)
    print(f"{len(directories) - len(errors)} runs: {target.view(options)}")
    return 1 if errors else 0
