"""The journals of runs as TensorBoard's event files: `python -m rlvr.tracker.tensorboard --out DIR [--sweep ID ...]`.

A folder `<study>/<run>` for each run, replaced whole by every call: an event file has no keys, so a line that was sent
twice would be drawn twice. Needs `pip install 'rlvr[tensorboard]'`.
"""

# protobuf makes the classes of its modules when they are imported
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger import journal, layout, terminal
from rlvr.ledger.files import whole
from rlvr.ledger.runs import Unreadable, choices, flatten, grouped, read_config, read_info
from rlvr.ledger.sweeps import Ledger, Sweep
from rlvr.tracker.mlflow import run_dirs

FILE = "events.out.tfevents.0.rlvr"  # TensorBoard knows its files by this beginning
STUDY = "main"  # of runs that belong to none


def write(run_dir: Path, out: Path, swept: Sequence[str] = ()) -> int:
    """Write one run to the folder `out`; returns the number of its steps. swept: knobs that stand in HPARAMS.

    Of a step that two attempts measured, the first counts. Raises Unreadable for a run that cannot be read.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    records = _first_of_each_step(run_dir)
    knobs = _knobs(read_config(run_dir), swept)
    with whole(out, durable=False) as aside:
        aside.mkdir(parents=True)
        with (aside / FILE).open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(file_version="brain.Event:2").SerializeToString())
            for summary in _hparams(run_dir.name, knobs):
                writer.write(Event(wall_time=0.0, summary=summary).SerializeToString())
            for record in records:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
                event = Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
                writer.write(event.SerializeToString())
            writer.flush()
    return len(records)


def _first_of_each_step(run_dir: Path) -> list[journal.Record]:
    first: dict[int, journal.Record] = {}
    for record in journal.read(layout.journal(run_dir)).records:
        first.setdefault(record.step, record)
    return sorted(first.values(), key=lambda record: record.step)


def _knobs(config: Mapping[str, Any], swept: Sequence[str]) -> dict[str, float | str]:
    """The values of these knobs: of a group its option."""
    known = {**flatten(config), **choices(config)}
    values = {key: known[key] for key in swept if known.get(key) is not None}
    return {
        k: float(v) if isinstance(v, int | float) and not isinstance(v, bool) else str(v) for k, v in values.items()
    }


def _hparams(name: str, knobs: Mapping[str, float | str]) -> Iterator[Any]:
    if knobs:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        yield hparams_pb(dict(knobs), trial_id=name, start_time_secs=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 if some run cannot be read, 2 for bad input."""
    parser = argparse.ArgumentParser(
        "python -m rlvr.tracker.tensorboard",
        description="Write the journals of runs as event files, for `tensorboard --logdir DIR`. Safe to repeat.",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder that `tensorboard --logdir` is to read")
    parser.add_argument("--home", type=Path, help="the directory that holds runs/ (default: $RLVR_HOME, the checkout)")
    parser.add_argument("--sweep", nargs="+", default=[], metavar="ID", help="only the runs of these sweeps")
    options = parser.parse_args(arguments)
    home = (options.home or layout.home()).resolve()
    try:
        directories = run_dirs(home, options.sweep)
        errors = _write_all(directories, Ledger(home).sweeps(), options.out)
    except ModuleNotFoundError as error:
        print(f"error: {error}. Install it: pip install 'rlvr[tensorboard]'", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    for line in grouped(errors):
        print(line, file=sys.stderr)
    print(f"{len(directories) - len(errors)} runs in {options.out}. Look at them: tensorboard --logdir {options.out}")
    return 1 if errors else 0


def _write_all(directories: Sequence[Path], sweeps: Sequence[Sweep], out: Path) -> list[Unreadable]:
    errors: list[Unreadable] = []
    for directory in directories:
        mine = [sweep for sweep in sweeps if directory.name in sweep.run_ids]
        swept = dict.fromkeys(key for sweep in mine for key in (sweep.info.get("swept") or {}))
        try:
            info = read_info(directory)
            write(directory, out / (info.study or STUDY) / f"{info.name}-{directory.name[:6]}", list(swept))
        except Unreadable as error:
            errors.append(error)
    return errors


if __name__ == "__main__":
    sys.exit(main())
