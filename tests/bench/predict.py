"""Errors of the cost model of `--dry-run`: `python -m tests.bench.predict [HOME]`, four minutes on one core.

Executes ten short runs on five tasks, one after another, and predicts the time of each from the others, as it would
have been predicted before the run: once from all others, if one of them is on the same task, and once only from those
on other tasks. HOME: a home in which finished runs are kept and not repeated.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlvr.config.cost import errors
from rlvr.ledger.sweeps import Ledger
from sweeps.preview import measured

RUNS = (
    "loss=lad divergence=js eta=1 steps=40",
    "loss=grpo rollout.prompts=16 rollout.samples=16 steps=40",
    "loss=grpo trainer.updates=1 trainer.kl=0.01 steps=60",
    "loss=rloo rollout.prompts=64 rollout.samples=4 steps=30 evaluation.samples=16",
    "loss=maxrl rollout.dynamic_sampling=none trainer.updates=4 steps=60",
    "paper=small/coins loss=grpo steps=40 evaluation.every=20",
    "paper=small/coins loss=maxrl rollout.samples=32 steps=25",
    "paper=small/coins_rare loss=grpo steps=20",
    "paper=small/skills loss=grpo steps=30",
    "paper=small/styles loss=dph_forward_kl steps=30",
)
SETTING = "tracker=none cluster=local cluster.threads=1 cluster.report=false"


def main(home: Path) -> None:
    for typed in RUNS:
        command = [sys.executable, "-m", "rlvr.run", *typed.split(), *SETTING.split()]
        subprocess.run(command, env={**os.environ, "RLVR_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL)
    finished = measured(Ledger(home))
    by_others, by_other_tasks = (errors(finished, known=known) for known in (True, False))
    print(f"{'':40} {'took, s':>8} {'of its task':>12} {'of others':>10}")
    for index, run in enumerate(finished):
        choices, of_run = run.config["choices"], [by_others.get(index), by_other_tasks.get(index)]
        cells = [f"{error:+.0%}" if error is not None else "-" for error in of_run]
        print(f"{choices['task'] + ', ' + choices['loss']:40} {run.total_s:8.1f} {cells[0]:>12} {cells[1]:>10}")
    for condition, by_run in (("a run of the task had finished", by_others), ("none had", by_other_tasks)):
        sizes = [abs(error) for error in by_run.values()]
        print(f"{condition}: {len(sizes)} runs, median {statistics.median(sizes):.0%} off, at worst {max(sizes):.0%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
