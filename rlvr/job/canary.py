"""Checks that the engine samples from the policy in training, on fixed prompts after every sync."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlvr.objective.advantage import none as no_advantage
from rlvr.objective.batch import Batch
from rlvr.records import EngineDisagrees, Problem, Request, Reward, Rollout, Sampling, Tolerance
from rlvr.rollout.sampler import Sampler, noise_key
from rlvr.trainer.collate import collate
from rlvr.trainer.knobs import Place

PROMPTS, SAMPLES, TOKENS = 2, 2, 8  # of each rank; more prompts if it has more workers: one for each
MANY_TOKENS = 64  # if the tolerance limits only a share of the tokens
QUANTILE_TOKENS = 200  # of which one in a hundred is at least two tokens
ANY = Reward(0.0, "wrong")  # a placeholder: these responses are neither judged nor learned from


def compare(
    sampler: Sampler, logp: Callable[[Batch], Tensor], problems: Sequence[Problem], place: Place, temperature: float
) -> None:
    """Sample a few tokens from every rank's engine and compare their log-probabilities with the trainer's.

    logp: returns [B, T] nats of a batch of all ranks under the policy in training. Nothing is done if the engine has no
    `tolerance`. Raises EngineDisagrees on every rank, with the worst token in the message.
    """
    tolerance = sampler.engine.tolerance
    if tolerance is None:
        return
    num_prompts = max(PROMPTS, sampler.engine.copies)
    of_rank: list[Problem] = []
    if sampler.engine.copies:  # 0: another rank sends requests to the engine that this rank shares
        of_rank = [problems[(sampler.rank * num_prompts + i) % len(problems)] for i in range(num_prompts)]
    prompts = sampler.encode(of_rank)
    requests = [Request(prompt, SAMPLES, noise_key(problem)) for prompt, problem in zip(prompts, of_rank, strict=True)]
    num_tokens = TOKENS if math.isfinite(tolerance.largest) else MANY_TOKENS
    sampling = Sampling(min(num_tokens, place.max_tokens), seed=0, step=0, temperature=temperature)
    completions = sampler.engine.generate(requests, sampling) if requests else []
    rollouts = [
        Rollout(problem, prompt, samples, ("",) * SAMPLES, (ANY,) * SAMPLES)
        for problem, prompt, samples in zip(of_rank, prompts, completions, strict=True)
    ]
    groups = [group for groups_of_rank in sampler.gather(rollouts) for group in groups_of_rank]
    batch = collate(groups, no_advantage, pad_token_id=place.pad_token_id)
    trainer = logp(batch).cpu()
    difference = batch.log_ratio(trainer).abs().numpy()
    if agrees(difference[batch.mask.numpy()], tolerance):
        return
    worst = np.where(np.isnan(difference), np.inf, difference).argmax()
    row, column = np.unravel_index(worst, difference.shape)
    rank = row // (SAMPLES * num_prompts) * sampler.ranks_per_engine
    mean = difference.sum() / int(batch.mask.sum())
    raise EngineDisagrees(
        f"after a sync, log-probabilities of fixed prompts differ by up to {difference[row, column]:.2g} nats (mean "
        f"{mean:.2g}) between trainer and engine, more than rollout.engine.canary={tolerance.high:g} allows. Worst: "
        f"token {column + 1} of an answer to {groups[row // SAMPLES].problem.id}, rank {rank}: "
        f"trainer {trainer[row, column]:.6g}, engine {batch.logp_old[row, column]:.6g}. Samples would not be the "
        "policy's own. Did the engine get all weights, and do both compute alike (trainer.dtype, rollout.engine.dtype)?"
    )


def agrees(difference: NDArray[np.float32], tolerance: Tolerance) -> bool:
    """Whether differences [n] in nats, none NaN, are within the tolerance; of few tokens the quantile is not judged."""
    high = float(np.quantile(difference, 0.99)) if len(difference) >= QUANTILE_TOKENS else 0.0
    largest, mean = float(difference.max()), float(difference.mean())
    return largest <= tolerance.largest and high <= tolerance.high and mean <= tolerance.mean
