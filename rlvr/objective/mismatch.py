"""An engine has the policy's weights, but other kernels, precision and order of sums than the trainer: how far their
log-probabilities are apart, and what is done about it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rlvr.objective.batch import Batch
from rlvr.records import EngineDisagrees

Importance = Literal["none", "truncate", "clip", "mask"]
Level = Literal["token", "sequence", "geometric"]


def measure(batch: Batch, limit: float | None, level: Level = "token") -> dict[str, float]:
    """Of d = logp_old − logp_engine over the sampled tokens: mean |d|, max |d|, and KL(engine ‖ trainer) as the mean of
    e^d − 1 − d (k3, nats); the mean weight of a token and the share whose weight was cut, if they are weighed, and at
    the level of responses the largest |log ρ| of one.

    Empty if the batch knows nothing of the engine. limit: nats; raises EngineDisagrees if mean |d| is more, or NaN.
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
    """The batch with the weight of each token's loss, from ρ = π_old / π_engine:

    - truncate: min(ρ, cap) (truncated importance sampling, Ionides 2008; for engines Yao et al. 2025)
    - clip: ρ, but at least 1/cap and at most cap
    - mask: ρ where 1/cap ≤ ρ ≤ cap, else 0: it has no part in the loss, and still counts in its average
    - none: no weights

    level: whose ρ it is. token: its own, e^d, biased in all but its own step; sequence: its response's, e^{Σ d}, which
    alone is without bias and has the most variance; geometric: e^{mean d} of its response, which says how far the two
    policies are apart whatever the length. Those of responses are [B] and go with losses of one term per response.
    A token that the engine did not sample, or whose log-probability it did not give, weighs 1.
    """
    for name, value, known in (("importance", importance, Importance), ("importance_level", level, Level)):
        if value not in get_args(known):
            raise ValueError(f"rollout.{name}={value} is unknown. Pass one of: {', '.join(get_args(known))}.")
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
    """[B, T] of values [B] or [B, T]"""
    return values if values.dim() == 2 else values[:, None].expand_as(batch.mask)


def _sampled(batch: Batch) -> Tensor:
    """[B, T] bool: response tokens of kind 0 whose log-probability the engine gave."""
    assert batch.logp_engine is not None
    own = batch.mask & ~batch.logp_engine.isnan()
    return own if batch.kind is None else own & (batch.kind == 0)[:, None]


def _log_ratio(batch: Batch, level: Level) -> Tensor:
    """d [B, T], 0 where nothing is known; of responses its sum or mean over what is, [B]."""
    assert batch.logp_engine is not None
    known = _sampled(batch)
    d = torch.where(known, batch.logp_old - batch.logp_engine, 0.0)
    if level == "token":
        return d
    total = d.sum(-1)
    return total if level == "sequence" else total / known.sum(-1).clamp(min=1)
