"""What every rank of tests/job/test_checkpoints.py does, started by rlvr.job.ranks: `resuming.py FIRST OTHER SHOWS_S
PATIENCE_S`. Each goes on from a directory of its own, as if it were one that a network file system shows differently:
the newest checkpoint of FIRST shows in OTHER after SHOWS_S seconds, if not 0.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from rlvr.trainer import distributed
from tests.job.test_checkpoints import make_checkpoints, weights


def main(first: Path, other: Path, shows_s: float, patience_s: float) -> None:
    rank, _, _ = distributed.join_group()
    distributed.VISIBLE_S = patience_s
    kept = make_checkpoints(other if rank else first, keep=2, keep_best=False)
    newest = "step-00000004"
    if rank and shows_s:
        threading.Timer(shows_s, (other / newest).symlink_to, [first / newest]).start()
    try:
        extra = kept.resume()
    except RuntimeError as error:
        tell([rank, str(error)])
    assert extra is not None
    (weight, *_) = (float(each.flatten()[0]) for each in weights(kept).values())
    if rank and shows_s:
        (other / newest).unlink()
    kept.save(extra["step"], 40, {})
    tell([rank, extra["step"], weight, "saved already"])


def tell(said: list[object]) -> None:
    os.write(1, f"{json.dumps(said)}\n".encode())
    distributed.barrier()
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
