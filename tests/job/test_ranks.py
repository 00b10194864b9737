"""A run on two ranks is the run on one, heads beside the model included, up to the order of sums."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.ledger.journal import read
from tests.job import ranks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Four classes: some answers are right. Whitened advantages of equal rewards are rounding errors (ppo); so is the first
# gradient of log Z with centred advantages, which AdamW takes for one (flowrl).
KNOBS = ["task.classes=4", "lr=0.1", "steps=4", "rollout.samples=4", "trainer.base_kl=true"]

LOSSES = [["loss=ppo"], ["loss=flowrl", "advantage=reinforce"], ["loss=grpo", "trainer.kl=0.1"]]


def on_two_ranks(directory: Path, overrides: list[str]) -> None:
    """Where fresh memory reads as not-a-number: what nobody has written cannot pass for a weight."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, str(Path(ranks.__file__)), str(directory), *overrides],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def recorded(directory: Path) -> dict[int, dict[str, float]]:
    records = read(directory / "runs" / "x" / "metrics.jsonl").records
    timed = ("time/", "throughput/")
    return {r.step: {k: v for k, v in r.metrics.items() if not k.startswith(timed)} for r in records}


@pytest.mark.parametrize(
    "loss", [["loss=ppo"], ["loss=flowrl", "advantage=reinforce"], ["loss=grpo", "trainer.kl=0.1"]], ids=" ".join
)
def test_two_ranks_record_the_metrics_of_one(loss: list[str], tmp_path: Path) -> None:
    overrides = [*KNOBS, *loss]
    ranks.train(tmp_path / "one", overrides, first=True)
    on_two_ranks(tmp_path / "two", overrides)
    one, two = recorded(tmp_path / "one"), recorded(tmp_path / "two")
    assert list(one) == list(two) == [0, 1, 2, 3, 4]
    for step, expected in one.items():
        assert two[step] == pytest.approx(expected, rel=1e-4, abs=1e-6), step
