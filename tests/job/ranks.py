"""The program of each rank of tests/job/test_ranks.py, started by rlvr.job.ranks: `ranks.py JSON`, a list of
directories and overrides.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from rlvr.trainer import distributed
from tests.job.test_loop import make_run
from tests.trainer.ranks import fresh_memory_is_nan


def train(directory: Path, overrides: list[str], *, first: bool) -> None:
    """A whole run in `directory`; its first rank records the metrics."""
    run = make_run(directory, *overrides, journal=first)
    with contextlib.ExitStack() as stack:
        if run.journal is not None:
            stack.enter_context(contextlib.closing(run.journal))
        stack.enter_context(contextlib.closing(run))
        assert run.train(StopFlag()) is Cause.OK


if __name__ == "__main__":
    with fresh_memory_is_nan():  # so that memory that was never written to is not mistaken for a weight
        for place, *words in json.loads(sys.argv[1]):
            train(Path(place), words, first=os.environ["RANK"] == "0")
    distributed.end_process(0)
