"""Whole runs on the fake CUDA, one after the other: `cuda_run JSON`, a list of directories and overrides."""

from __future__ import annotations

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
    "task=maze",
    "task.size=5",
    "task.test_problems=2",
    "model=maze_tiny",
    "model.steps=2",
    "model.batch=4",
    "loss=grpo",
    "lr=1e-3",
    "steps=2",
    "rollout.prompts=2",
    "rollout.samples=2",
    "rollout.max_tokens=6",
    "rollout.dynamic_sampling=none",
    "evaluation.every=2",
    "evaluation.samples=1",
    "evaluation.k=[1]",
    "trainer.updates=1",
    "checkpoint.every=1",
)


def train(directory: Path, *overrides: str) -> None:
    run = make_run(directory, *overrides, usual=SMALL, journal=True)
    with contextlib.closing(run):
        assert run.spool is not None
        with contextlib.closing(run.spool):
            assert run.train(StopFlag()) is Cause.OK


def main(runs: list[list[str]]) -> None:
    _, _, device = distributed.join_group()
    assert device.type == "cuda"
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    for directory, *overrides in runs:
        train(Path(directory), *overrides)
    distributed.end_process(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
