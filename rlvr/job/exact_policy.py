"""A bandit's policy, computed instead of sampled: all arms are the one-token responses of one group."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlvr.objective.batch import Advantage, Batch
from rlvr.records import ArmedTask, Problem
from rlvr.trainer.collate import encode, with_advantage
from rlvr.trainer.fsdp import Trainer


def exact_policy(
    task: ArmedTask, tokenizer: Any, prompt: NDArray[np.int64], trainer: Trainer, advantage: Advantage
) -> dict[str, NDArray[Any]]:
    """Columns arm, reward, advantage and probability, [K] each. prompt: [L] token ids. Called by all ranks."""
    arms = [Problem(arm, arm) for arm in task.arms]
    tokens = torch.tensor([int(ids[0]) for ids in encode(tokenizer, arms, chat=False)])[:, None]
    reward = torch.tensor(task.rewards(), dtype=torch.float32)
    nothing = torch.zeros(tokens.shape)
    batch = Batch(
        tokens=tokens,
        mask=nothing == 0,
        logp_old=nothing,
        advantage=reward,
        reward=reward,
        group=torch.zeros(len(arms), dtype=torch.int64),
        prompt=torch.from_numpy(prompt)[None],
        prompt_mask=torch.ones((1, len(prompt)), dtype=torch.bool),
    )
    batch = replace(batch, logp_old=trainer.logp(batch).cpu())
    return {
        "arm": np.arange(len(arms)),
        "reward": reward.numpy(),
        "advantage": with_advantage(batch, advantage, trainer.policy_of).advantage.flatten().numpy(),
        "probability": batch.logp_old[:, 0].double().exp().numpy(),
    }
