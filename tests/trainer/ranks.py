"""What every rank of tests/trainer/test_ranks.py does, started by torchrun: `ranks.py DIRECTORY`."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlvr.batch import Batch
from rlvr.loss import dph
from rlvr.model import word_tokenizer
from rlvr.trainer import distributed
from tests.trainer.tiny import batch, gradients, trainer, weights

# Rows of two kinds, each averaged over its own tokens, and a reference policy that runs along.
STREAMS = partial(dph.js_definition, clip_low=0.2, clip_high=0.2, coef=0.5)

# One update, then its gradient. The last two leave a rank without work, in some micro-batches or in all.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small micro-batches": {"token_budget": 1},
    "padded": {"packing": False, "token_budget": 30},
    "clipped, to the base policy": {"clip_norm": 0.05, "kl": 0.3, "base_kl": True, "entropy": 0.1},
    "sequence mean": {"aggregation": "seq-mean-token-mean", "shared_prompt": "always"},
    "recomputed": {"activation_checkpointing": True, "token_budget": 1},
    "two streams": {"loss": STREAMS, "token_budget": 1},
    "bfloat16": {"dtype": "bfloat16"},
    "one group": {"updates": 3},
}


def data() -> Batch:
    return batch(logp_ref=None)


def learn(knobs: dict[str, Any]) -> dict[str, Any]:
    made = trainer(**knobs)
    rows = data()
    metrics = made.learn(replace(rows, kind=(rows.group == 1).long()) if knobs.get("loss") is STREAMS else rows)
    return {"gradients": gradients(made), "metrics": metrics, "logp": made.logp(data())}


# As in a run: several updates of several rollouts, stopped in between.
TRAINING: dict[str, Any] = {"updates": 2, "lr": 0.01, "betas": (0.9, 0.99), "clip_norm": 0.1, "token_budget": 20}


def main(directory: Path) -> None:
    rank, world, device = distributed.start()
    results = {name: learn(knobs) for name, knobs in CASES.items()}
    made = trainer(**TRAINING)
    for seed in range(2):
        made.learn(batch(seed=seed))
    made.save(directory / f"step-{world}", {"seen": 2})
    kept = weights(made)
    made.export(directory / f"policy-{world}", word_tokenizer([f"w{i}" for i in range(14)] + ["end"], "end"))
    if (directory / "step-1").exists() and world > 1:
        made.load(directory / "step-1")
        results["loaded"] = {"weights": weights(made), "averages": gradients(made)}
    results["collectives"] = {
        "gather": distributed.gather([rank]),
        "any": (distributed.any_rank(rank == world - 1), distributed.any_rank(False)),
        "device": str(device),
    }
    torch.save({**results, "weights": kept}, directory / f"rank-{rank}-of-{world}.pt")
    distributed.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
