"""The mismatch between the log-probabilities of engine and trainer: its measurement and correction.

Both have the same weights, but different kernels, precision and order of summation.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rlvr.objective.batch import Batch
from rlvr.records import EngineDisagrees

Importance = Literal["none", "truncate", "clip", "mask"]
Level = Literal["token", "sequence", "geometric"]


def measure(batch: Batch, limit: float | None, level: Level = "token") -> dict[str, float]:
    """Metrics of d = logp_old − logp_engine over the sampled tokens: mean |d|, max |d|, and KL(engine ‖ trainer) as the
    mean of e^d − 1 − d (k3, nats). If the batch has weights: the mean weight of a token, the share of tokens whose
    weight was cut, and for a level of responses the largest |log ρ| of a response.

    Empty if the batch has no log-probabilities of the engine. limit: nats; raises EngineDisagrees if mean |d| is larger
    or NaN.
    """
    if batch.logp_engine is None or not bool(_sampled(batch).any()):
        return {}
    sampled = _sampled(batch)
    d = _log_ratio(batch, "token")[sampled].double()
    mean, worst = float(d.abs().mean()), float(d.abs().max())
    if limit is not None and not mean <= limit:
        raise EngineDisagrees(
            f"log-probabilities of {len(d)} sampled tokens differ by {mean:.2g} nats on average (at most {worst:.2g}) "
            f"between trainer and engine, more than rollout.max_mismatch={limit:g}. Compute alike (trainer.dtype, "
            "rollout.engine.dtype), or pass a larger rollout.max_mismatch."
        )
    measured = {"mismatch/mean": mean, "mismatch/max": worst, "mismatch/kl": float((torch.expm1(d) - d).mean())}
    if batch.weight is None:
        return measured
    log_ratio = _log_ratio(batch, level)
    if level != "token":
        measured["mismatch/sequence"] = float(log_ratio.abs().max())
    ratio = _per_token(log_ratio, batch)[sampled].double().clamp(-20, 20).exp()
    weight = _per_token(batch.weight, batch)[sampled].double()
    cut = (weight - ratio).abs() > 1e-4 * ratio
    return {**measured, "mismatch/weight": float(weight.mean()), "mismatch/cut": float(cut.double().mean())}


def weigh(batch: Batch, importance: Importance, cap: float, level: Level = "token") -> Batch:
    """The batch with weights for each token's loss, from the ratio ρ = π_old / π_engine:

    - truncate: min(ρ, cap) (truncated importance sampling, Ionides 2008; for engines Yao et al. 2025)
    - clip: ρ, but at least 1/cap and at most cap
    - mask: ρ where 1/cap ≤ ρ ≤ cap, else 0: the token contributes 0 to the loss, and still counts in its average
    - none: no weights

    level: the level at which ρ is computed. token: e^d of the token, which corrects only the token's own step and is
    therefore biased; sequence: e^{Σ d} of the response, the only one without bias, with the largest variance;
    geometric: e^{mean d} of the response, a distance of the two policies that does not depend on the length. Weights of
    responses are [B], for losses with one term per response. A token that the engine did not sample, or without its
    log-probability, has the weight 1.
    """
    if importance == "none" or batch.logp_engine is None:
        return batch
    ratio = _log_ratio(batch, level).clamp(-20, 20).exp()
    match importance:
        case "truncate":
            weight = ratio.clamp(max=cap)
        case "clip":
            weight = ratio.clamp(1 / cap, cap)
        case _:
            weight = ratio * ((1 / cap <= ratio) & (ratio <= cap))
    return replace(batch, weight=weight)


def _per_token(values: Tensor, batch: Batch) -> Tensor:
    """Values [B] or [B, T] as [B, T]."""
    return values if values.dim() == 2 else values[:, None].expand_as(batch.mask)


def _sampled(batch: Batch) -> Tensor:
    """[B, T] bool: response tokens of kind 0 that have a log-probability of the engine."""
    assert batch.logp_engine is not None
    sampled = batch.mask & ~batch.logp_engine.isnan()
    return sampled if batch.kind is None else sampled & (batch.kind == 0)[:, None]


def _log_ratio(batch: Batch, level: Level) -> Tensor:
    """At the level token d [B, T], 0 for tokens that are not sampled; else its sum or mean over a response, [B]."""
    assert batch.logp_engine is not None
    sampled = _sampled(batch)
    d = torch.where(sampled, batch.logp_old - batch.logp_engine, 0.0)
    if level == "token":
        return d
    total = d.sum(-1)
    return total if level == "sequence" else total / sampled.sum(-1).clamp(min=1)
