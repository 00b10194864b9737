"""Does the engine sample from the policy in training? Asked of fixed prompts after every sync."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvr.objective.batch import Batch
from rlvr.records import EngineDisagrees, Problem, Request, Reward, Rollout, Sampling, Tolerance
from rlvr.rollout.sampler import Sampler, noise_key
from rlvr.trainer.collate import collate
from rlvr.trainer.knobs import Place

PROMPTS, SAMPLES, TOKENS = 2, 2, 8  # of each rank; at least a prompt for each of its workers
MANY_TOKENS = 64  # where a share of them is judged
ANY = Reward(0.0, "wrong")  # nobody judges or learns from these


def compare(
    sampler: Sampler, logp: Callable[[Batch], Tensor], problems: Sequence[Problem], place: Place, temperature: float
) -> None:
    """Sample a few tokens from every rank's engine and compare their log-probabilities with the trainer's.

    logp: [B, T] nats of a batch of all ranks under the policy in training. An engine without a tolerance (`canary`) is
    not asked. Raises EngineDisagrees on every rank, naming the worst token.
    """
    tolerance = sampler.engine.canary
    if tolerance is None:
        return
    count = max(PROMPTS, sampler.engine.workers)
    mine = [problems[(sampler.rank * count + i) % len(problems)] for i in range(count)]
    mine = mine if sampler.engine.workers else []  # another rank asks the engine that this one shares
    requests = [Request(p, SAMPLES, noise_key(q)) for p, q in zip(sampler.encode(mine), mine, strict=True)]
    tokens = TOKENS if math.isfinite(tolerance.largest) else MANY_TOKENS
    sampling = Sampling(min(tokens, place.max_tokens), seed=0, step=0, temperature=temperature)
    groups = sampler.engine.generate(requests, sampling) if requests else []
    own = [
        Rollout(problem, request.prompt, group, ("",) * SAMPLES, (ANY,) * SAMPLES)
        for problem, request, group in zip(mine, requests, groups, strict=True)
    ]
    everyone = [group for each in sampler.gather(own) for group in each]
    batch = collate(everyone, lambda reward, group: torch.zeros_like(reward), pad_token_id=place.pad_token_id)
    trainer = logp(batch).cpu()
    difference = batch.log_ratio(trainer).abs().numpy()
    if agrees(difference[batch.mask.numpy()], tolerance):
        return
    worst = np.where(np.isnan(difference), np.inf, difference).argmax()
    row, column = np.unravel_index(worst, difference.shape)
    rank = row // (SAMPLES * count) * sampler.ranks_per_engine
    mean = difference.sum() / int(batch.mask.sum())
    raise EngineDisagrees(
        f"after a sync, log-probabilities of fixed prompts differ by up to {difference[row, column]:.2g} nats (mean "
        f"{mean:.2g}) between trainer and engine, more than rollout.engine.canary={tolerance.high:g} allows. Worst: "
        f"token {column + 1} of an answer to {everyone[row // SAMPLES].problem.id}, rank {rank}: "
        f"trainer {trainer[row, column]:.6g}, engine {batch.logp_old[row, column]:.6g}. Samples would not be the "
        "policy's own. Did the engine get all weights, and do both compute alike (trainer.dtype, rollout.engine.dtype)?"
    )


def agrees(difference: NDArray[np.float32], tolerance: Tolerance) -> bool:
    """Whether differences [n] in nats are within the tolerance. Not-a-number is no agreement."""
    high = float(np.quantile(difference, 0.99))
    largest, mean = float(difference.max()), float(difference.mean())
    return largest <= tolerance.largest and high <= tolerance.high and mean <= tolerance.mean
