"""The program of each rank of tests/job/test_checkpoints.py, started by rlvr.job.ranks: `resuming.py FIRST OTHER
SHOWS_S PATIENCE_S`. Each rank resumes from a directory of its own, as if a network file system showed one directory
differently to both: the newest checkpoint of FIRST appears in OTHER after SHOWS_S seconds, or never if SHOWS_S is 0.
"""

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
    checkpoints = make_checkpoints(other if rank else first, keep=2, keep_best=False)
    newest = "step-00000004"
    if rank and shows_s:
        threading.Timer(shows_s, (other / newest).symlink_to, [first / newest]).start()
    try:
        extra = checkpoints.resume()
    except RuntimeError as error:
        report([rank, str(error)])
    assert extra is not None
    weight = float(next(iter(weights(checkpoints).values())).flatten()[0])
    if rank and shows_s:
        (other / newest).unlink()
    checkpoints.save(extra["step"], 40, {})
    report([rank, extra["step"], weight, "saved already"])


def report(result: list[object]) -> None:
    """Print the result of this rank, and end its process."""
    os.write(1, f"{json.dumps(result)}\n".encode())
    distributed.barrier()
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
