"""How far off the cost model of `--dry-run` is: `python -m tests.bench.predict [HOME]`, four minutes on one core.

Ten short runs on five tasks, one after another; the hours of each are then predicted from the nine others, with the
lengths of its own prompts and responses. HOME: of ten such runs that have finished, which are not run again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlvr.config.cost import calibrated
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
    finished, errors = measured(Ledger(home)), list[float]()
    print(f"{'':40} {'took, s':>8} {'predicted':>10} {'off':>6}")
    for number, run in enumerate(finished):
        others = [*finished[:number], *finished[number + 1 :]]
        predicted = sum(calibrated(run.config, run.model, others, seen=run.seen).values())
        errors.append(predicted / run.total_s - 1)
        chosen = run.config["choices"]
        print(f"{chosen['task'] + ', ' + chosen['loss']:40} {run.total_s:8.1f} {predicted:10.1f} {errors[-1]:+6.0%}")
    sizes = [abs(error) for error in errors]
    print(f"{len(sizes)} runs: median {statistics.median(sizes):.0%} off, at worst {max(sizes):.0%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
