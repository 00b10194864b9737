"""Errors of the cost model of `--dry-run`: `python -m tests.bench.predict [HOME]`, two minutes on one core.

Executes six short runs on five tasks, one after another, and compares what each took with what was estimated before.
HOME: a home in which finished runs are kept and not repeated.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlvr.config import cost, memory
from rlvr.ledger.runs import read_config
from rlvr.ledger.sweeps import Ledger

RUNS = (
    "loss=lad divergence=js eta=1 steps=40",
    "loss=rloo rollout.prompts=64 rollout.samples=4 steps=30 evaluation.samples=16",
    "paper=small/coins loss=grpo steps=40 evaluation.every=20",
    "paper=small/coins loss=maxrl rollout.samples=32 steps=25",
    "paper=small/skills loss=grpo steps=30",
    "paper=small/styles loss=dph_forward_kl steps=30",
)
SETTING = "tracker=none cluster=local cluster.threads=1 cluster.report=false"


def main(home: Path) -> None:
    for typed in RUNS:
        command = [sys.executable, "-m", "rlvr.run", *typed.split(), *SETTING.split()]
        subprocess.run(command, env={**os.environ, "RLVR_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL)
    ledger, ratios = Ledger(home), list[float]()
    for state in ledger.states(ledger.runs()):
        config = read_config(ledger.run_dir(state.run_id))
        model = memory.architecture_of_model(config["model"])
        assert model is not None
        estimated_s = sum(cost.seconds(config, model).values())
        ratios.append(estimated_s / state.seconds)
        print(f"{config['choices']['task']}, {config['choices']['loss']}: took {state.seconds:.0f} s", end=", ")
        print(f"estimated {estimated_s:.0f} s")
    print(f"estimated / took: {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
