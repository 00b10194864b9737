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
from typing import Any

from rlvr.ledger.files import whole
from rlvr.tracker import copies
from rlvr.tracker.copies import Copied, Value

FILE = "events.out.tfevents.0.rlvr"  # TensorBoard knows its files by this beginning


def write(run: Copied, options: argparse.Namespace) -> None:
    """Write a run to a folder below `options.out`. What a sweep varied stands in HPARAMS."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with whole(options.out / run.study / f"{run.name}-{run.run_id[:6]}", durable=False) as aside:
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
    if knobs:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        numbers = {k: float(v) for k, v in knobs.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        texts = {k: str(v) for k, v in knobs.items() if k not in numbers}
        yield hparams_pb({**numbers, **texts}, trial_id=name, start_time_secs=0.0)


TARGET = copies.Target(
    name="tensorboard",
    about="Write the journals of runs as event files, for `tensorboard --logdir DIR`.",
    write=write,
    told=lambda options: f"tensorboard --logdir {options.out}",
    out="the folder that `tensorboard --logdir` is to read",
)


def main(arguments: Sequence[str] | None = None) -> int:
    return copies.main(TARGET, arguments)


if __name__ == "__main__":
    sys.exit(main())
