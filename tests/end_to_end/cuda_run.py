"""Whole runs on the fake CUDA, one after the other: `cuda_run JSON`, a list of directories and overrides.

Of one rank, or of several."""

import contextlib
import json
import os
import sys
from pathlib import Path

from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from rlvr.trainer import distributed
from tests.job.test_loop import make_run

SMALL = (
    *("task=maze", "task.size=5", "task.test_problems=2", "model=maze_tiny", "model.steps=2", "model.batch=4"),
    *("loss=grpo", "lr=1e-3", "steps=2", "rollout.prompts=2", "rollout.samples=2", "rollout.max_tokens=6"),
    *("rollout.dynamic_sampling=none", "evaluation.every=2", "evaluation.samples=1", "evaluation.k=[1]"),
    *("trainer.updates=1", "checkpoint.every=1"),
)


def train(directory: Path, *overrides: str, first: bool = True) -> None:
    """first: of the ranks, who records the metrics."""
    run = make_run(directory, *overrides, usual=SMALL, journal=first)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(run))
        if run.journal is not None:
            stack.enter_context(contextlib.closing(run.journal))
        assert run.train(StopFlag()) is Cause.OK


def main(runs: list[list[str]]) -> None:
    rank, world, device = distributed.join_group()
    assert device.type == "cuda"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in range(world))
    for directory, *overrides in runs:
        train(Path(directory), *overrides, first=rank == 0)
    distributed.end_process(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
