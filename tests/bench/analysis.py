"""Time that the analysis of a large study takes: `python -m tests.bench.analysis [RUNS] [METRICS] [STEPS]`.

Writes a ledger of synthetic runs (five seeds an arm, four divergences), then runs `python -m analysis` on it: cold,
warm, and after one run has got another step. 500 runs of 50 metrics and 1,000 steps are 450 MB of journals.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import rlvr
from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.journal import encode
from rlvr.ledger.samples import write_parquet
from rlvr.ledger.sweeps import Ledger

SEEDS, EVALUATIONS, PROBLEMS, SAMPLES = 5, 5, 200, 8
LOGGED = ("reward/accuracy", "reward/solved_fraction", "policy/entropy", "policy/kl_base", "optim/grad_norm")
LOGGED += ("response/length", "time/step_s", "tokens/rollout")
COMMAND = "python -m rlvr.run -m loss=lad divergence=js,hd,tv,kl eta=... seed=0,1,2,3,4"


def main(num_runs: int = 500, num_metrics: int = 50, num_steps: int = 1000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        began = time.perf_counter()
        write(home, num_runs, num_metrics, num_steps)
        print(f"{'ledger written':34} {time.perf_counter() - began:8.2f} s")
        for caches in ("cold", "warm"):
            print(f"{f'{num_runs} runs, {caches}':34} {analysed(home):8.2f} s")
        first = Ledger(home).runs()[0]
        with layout.journal(layout.run(home, first)).open("ab") as journal:
            journal.write(encode(num_steps + 1, 0.0, 1, dict.fromkeys(names(num_metrics), 0.5)))
        print(f"{'one run moved on':34} {analysed(home):8.2f} s")
        (page,) = home.glob("reports/*/index.html")
        print(f"{'page':34} {page.stat().st_size / 1e6:8.2f} MB")


def analysed(home: Path) -> float:
    """Seconds that `python -m analysis` takes, including the start of Python."""
    began = time.perf_counter()
    environment = {**os.environ, "RLVR_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "analysis"], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def names(num_metrics: int) -> list[str]:
    return [*LOGGED, *(f"custom/metric_{i:02}" for i in range(num_metrics - len(LOGGED)))]


def write(home: Path, num_runs: int, num_metrics: int, num_steps: int) -> None:
    """Write finished runs, evaluated at five points. Their numbers depend only on arm and seed."""
    ledger, lines = Ledger(home), []
    arms = [(d, e) for e in range(-(-num_runs // (4 * SEEDS))) for d in ("js", "hd", "tv", "kl")]
    for number in range(num_runs):
        (divergence, rank), seed = arms[number // SEEDS], number % SEEDS
        eta = round(0.1 * (rank + 1), 1)
        typed = ["loss=lad", f"divergence={divergence}", f"eta={eta:g}", f"seed={seed}"]
        config = COMPOSED[divergence] if divergence in COMPOSED else _compose(divergence)
        run_id, name = f"{number:012x}", f"lad-{divergence}-eta{eta:g}-s{seed}"
        info = {"run_id": run_id, "name": name, "arm": name.rpartition("-")[0], "study": "large", "created": 1.0}
        info |= {"group_id": f"group{number // SEEDS}", "command": COMMAND, "git_sha": "0" * 40, "host": "here"}
        ledger.create_run(run_id, config.replace("777.5", f"{eta:g}").replace("seed: 777", f"seed: {seed}"), info)
        lines.append({**info, "seed": seed, "overrides": typed, "index": number})
        _measure(layout.run(home, run_id), np.random.default_rng(number), rank, num_metrics, num_steps)
    about = {"study": "large", "command": COMMAND, "created": 1.0, "swept": {"divergence": [], "eta": []}}
    ledger.record_sweep("large000", about, lines)


COMPOSED: dict[str, str] = {}


def _compose(divergence: str) -> str:
    from omegaconf import OmegaConf

    from rlvr.config.freeze import frozen_config

    config = rlvr.compose(["loss=lad", f"divergence={divergence}", "eta=777.5", "seed=777", "tracker=none"])
    choices = {"loss": "lad", "divergence": divergence, "advantage": "grpo", "task": "maze", "model": "pretrain"}
    COMPOSED[divergence] = OmegaConf.to_yaml(OmegaConf.create(frozen_config(config, choices)))
    return COMPOSED[divergence]


def _measure(run_dir: Path, random: np.random.Generator, rank: int, num_metrics: int, num_steps: int) -> None:
    values = random.random((num_steps, num_metrics)).round(6).tolist()
    metrics = names(num_metrics)
    points = [num_steps * i // (EVALUATIONS - 1) for i in range(EVALUATIONS)]
    with Attempt.open(run_dir) as attempt, layout.journal(run_dir).open("wb") as journal:
        for step in range(num_steps + 1):
            logged = dict(zip(metrics, values[step - 1], strict=True)) if step else {}
            if step in points:
                logged |= _evaluate(run_dir, random, 0.2 + 0.1 * step / num_steps + 0.01 * (rank % 7), step)
            journal.write(encode(step, 1.0 + step, 1, logged))
        attempt.close("ok")


def _evaluate(run_dir: Path, random: np.random.Generator, chance: float, step: int) -> dict[str, float]:
    right = random.random((PROBLEMS, SAMPLES)) < chance
    problem, sample = np.divmod(np.arange(PROBLEMS * SAMPLES), SAMPLES)
    columns = {
        "step": np.full(right.size, step),
        "source": ["problems"] * right.size,
        "problem_id": [f"problem-{p}" for p in problem],
        "prompt": [f"What is {p} + {p}?" for p in problem],
        "sample": sample,
        "response": [
            f"The answer to problem {p} of sample {s} is {p + p}." for p, s in zip(problem, sample, strict=True)
        ],
        "outcome": np.where(right.ravel(), "correct", "wrong").tolist(),
        "reward": right.ravel().astype(float),
        "num_tokens": np.full(right.size, 12),
        "finished": np.ones(right.size, bool),
    }
    write_parquet(pa.table(columns), layout.evaluation(run_dir, step))
    return {
        "evaluation/problems/avg_at_8": float(right.mean()),
        "evaluation/problems/pass_at_8": float(right.any(1).mean()),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
