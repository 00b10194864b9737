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

Importance = Literal["none", "truncate", "mask"]


def measure(batch: Batch, limit: float | None) -> dict[str, float]:
    """Of d = logp_old − logp_engine over the sampled tokens: mean |d|, max |d|, and KL(engine ‖ trainer) as the mean of
    e^d − 1 − d (k3, nats); the mean weight of a token and the share whose weight was cut, if tokens are weighed.

    Empty if the batch knows nothing of the engine. limit: nats; raises EngineDisagrees if mean |d| is more, or NaN.
    """
    if batch.logp_engine is None or not bool(_sampled(batch).any()):
        return {}
    sampled = _sampled(batch)
    d = _log_ratio(batch)[sampled].double()
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
    weight = batch.weight[sampled].double()
    cut = (weight - d.clamp(-20, 20).exp()).abs() > 1e-4 * weight.clamp(min=1)
    return {**measured, "mismatch/weight": float(weight.mean()), "mismatch/cut": float(cut.double().mean())}


def weigh(batch: Batch, importance: Importance, cap: float) -> Batch:
    """The batch with the weight of each token's loss, from ρ = π_old / π_engine = e^d of that token:

    - truncate: min(ρ, cap) (truncated importance sampling, Ionides 2008; for engines Yao et al. 2025)
    - mask: ρ where 1/cap ≤ ρ ≤ cap, else 0: the token has no part in the loss, and still counts in its average
    - none: no weights

    A token that the engine did not sample, or whose log-probability it did not give, weighs 1.
    """
    if importance not in get_args(Importance):
        raise ValueError(f"rollout.importance={importance} is unknown. Pass one of: {', '.join(get_args(Importance))}.")
    if importance == "none" or batch.logp_engine is None:
        return batch
    ratio = _log_ratio(batch).clamp(-20, 20).exp()
    weight = ratio.clamp(max=cap) if importance == "truncate" else ratio * ((1 / cap <= ratio) & (ratio <= cap))
    return replace(batch, weight=weight)


def _sampled(batch: Batch) -> Tensor:
    """[B, T] bool: response tokens of kind 0 whose log-probability the engine gave."""
    assert batch.logp_engine is not None
    own = batch.mask & ~batch.logp_engine.isnan()
    return own if batch.kind is None else own & (batch.kind == 0)[:, None]


def _log_ratio(batch: Batch) -> Tensor:
    """[B, T] d, 0 where nothing is known."""
    assert batch.logp_engine is not None
    return torch.where(_sampled(batch), batch.logp_old - batch.logp_engine, 0.0)
