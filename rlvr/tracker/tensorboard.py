"""Write journals of runs as TensorBoard event files: `python -m rlvr.tracker.tensorboard --out DIR [--sweep ID ...]`.

Each run has a folder `<study>/<run>`, which every call replaces as a whole: event files have no keys, so a line that is
written twice would be drawn twice. Needs `pip install 'rlvr[tensorboard]'`.
"""

# protobuf creates the classes of its modules on import
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr.ledger.files import write_atomically
from rlvr.tracker import copies
from rlvr.tracker.copies import CopiedRun, Value

FILE = "events.out.tfevents.0.rlvr"  # TensorBoard recognises its files by the beginning of this name


def write(run: CopiedRun, options: argparse.Namespace) -> None:
    """Write a run to a folder below `options.out`. What a sweep varied is shown under HPARAMS."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with write_atomically(options.out / run.study / f"{run.name}-{run.run_id[:6]}", durable=False) as aside:
        aside.mkdir(parents=True)
        with (aside / FILE).open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(file_version="brain.Event:2").SerializeToString())
            for summary in _hparams(run.run_id, run.knobs):
                writer.write(Event(wall_time=0.0, summary=summary).SerializeToString())
            for record in run.records:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
                event = Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
                writer.write(event.SerializeToString())
            writer.flush()


def _hparams(name: str, knobs: Mapping[str, Value]) -> Iterator[Any]:
    """The summary of a run's knobs, if it has any."""
    if knobs:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        values: dict[str, float | str] = {}
        for knob, value in knobs.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[knob] = float(value)
            else:
                values[knob] = str(value)
        yield hparams_pb(values, trial_id=name, start_time_secs=0.0)


TARGET = copies.Target(
    name="tensorboard",
    about="Write the journals of runs as event files, for `tensorboard --logdir DIR`.",
    write=write,
    view=lambda options: f"tensorboard --logdir {options.out}",
    out="the folder that `tensorboard --logdir` is to read",
)


def main(arguments: Sequence[str] | None = None) -> int:
    return copies.main(TARGET, arguments)


if __name__ == "__main__":
    sys.exit(main())
