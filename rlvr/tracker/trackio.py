"""Write journals of runs to trackio's local store: `python -m rlvr.tracker.trackio [--out DIR] [--sweep ID ...]`.

A study becomes a project. Steps keep their times, and each has an id, so that trackio skips those that it has.
Needs `pip install 'rlvr[trackio]'`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rlvr.tracker import copies
from rlvr.tracker.copies import CopiedRun


def write(run: CopiedRun, options: argparse.Namespace) -> None:
    """Write a run to the store in `options.out`, by default trackio's own."""
    if options.out != TARGET.usual_out:
        os.environ["TRACKIO_DIR"] = str(options.out.resolve())  # read when trackio is imported
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


def _view(options: argparse.Namespace) -> str:
    return f"TRACKIO_DIR={options.out} trackio show" if options.out != TARGET.usual_out else "trackio show"


TARGET = copies.Target(
    name="trackio",
    about="Write the journals of runs to the local store of trackio, for `trackio show`.",
    write=write,
    view=_view,
    out="the folder of the store (default: $TRACKIO_DIR, else trackio's own)",
    usual_out=Path(os.environ.get("TRACKIO_DIR") or Path.home() / ".cache" / "huggingface" / "trackio"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return copies.main(TARGET, arguments)


if __name__ == "__main__":
    sys.exit(main())
