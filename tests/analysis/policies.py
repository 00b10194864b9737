"""Writes bandit runs whose final policy is known: nine arms, three modes of one arm each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tests.analysis.ledger_factory import config, counts, write_run

REWARD = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0], float)


def write_bandit(home: Path, divergence: str, where: str, *, seeds: tuple[int, ...]) -> None:
    """`where`: "target" (π = π_old e^{A/η}/Z at η = 1/4) or "first mode" (all mass on arm 1)."""
    for seed in seeds:
        loss = "grpo" if divergence == "grpo" else "lad"
        kl = 0.01 if loss == "grpo" else 0.0
        made = config(loss, divergence, eta=0.25, seed=seed, task={"_target_": "b"}, trainer={"kl": kl})
        made["choices"]["task"] = "bandit"
        run_id = write_run(home, made, {0: {"bandit": counts(2)}, 40: {"bandit": counts(4)}})
        old = np.random.default_rng(seed).dirichlet(np.ones(9))
        new = old * np.exp(REWARD / 0.25) if where == "target" else np.eye(9)[1]
        frame = pd.DataFrame(
            {
                "arm": range(9),
                "word": [f"arm{i}" for i in range(9)],
                "reward": REWARD,
                "probability": new / new.sum(),
                "probability_old": old,
                "advantage": REWARD,
            }
        )
        # Rows in any order: the arm column counts.
        frame.iloc[::-1].to_parquet(home / "runs" / run_id / "samples" / "policy-00000040.parquet")
