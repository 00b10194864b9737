"""DPH-RL (arXiv:2509.07430): learn on hard prompts, and on easy ones stay near what the base policy answered.

A batch holds two streams (`rlvr/rollout/presample.py`): rows of kind 0 explore, sampled by the policy for prompts of
D_exp; rows of kind 1 rehearse, one stored response of the base policy each, for prompts of D_pef, with the base
policy's log-probabilities as `logp_old`. Every loss here is, per token,

    explore   max(−A·r, −A·clip(r, 1 − clip_low, 1 + clip_high))   r = π/π_old
    rehearse  coef · f(u)                                          u = π/π_ref on the stored response

and the trainer adds the mean over each stream's own tokens: L_exp + coef·L_pef. Each f is 0 at u = 1 and at least 0
everywhere, so that a stored response costs nothing until the policy moves. Metrics [B, T], 0 on rows of the other
stream: `clip_fraction`; `rehearse`, the value f(u), and `rehearse_log_ratio`, −log u, whose mean over stored responses
estimates KL(π_ref ‖ π).

Beyond u = e^20 the derivatives stay where they are at e^20: they pull back, and are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from annotated_types import Interval
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from rlvr.loss.grpo import grpo
from rlvr.objective.batch import REHEARSE, Batch, Policy, Terms, needs

LIMIT = 20.0  # nats

# ℓ = log u → (f(u), d f/dℓ = u·f'(u)): as in rlvr/objective/divergence.py the derivative is given, not found by
# differentiation.
Generator = Callable[[Tensor], tuple[Tensor, Tensor]]


def forward_kl(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """f = u − 1 − log u: KL(π_ref ‖ π), the paper's coef 0.01.

    Differs from the paper: it writes f = −log u, whose expectation over π_ref is the same (E[u] = 1); this form is
    never negative and has no gradient at u = 1.
    """
    return _mixed(policy, batch, _forward_kl, clip_low=clip_low, clip_high=clip_high, coef=coef)


def js(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """f = u log u − (u + 1) log((u + 1)/2): twice the Jensen-Shannon divergence, the paper's coef 0.2."""
    return _mixed(policy, batch, _js, clip_low=clip_low, clip_high=clip_high, coef=coef)


def alpha(
    policy: Policy,
    batch: Batch,
    *,
    clip_low: NonNegativeFloat,
    clip_high: NonNegativeFloat,
    coef: NonNegativeFloat,
    alpha: Annotated[float, Interval(gt=0, lt=1)],
) -> Terms:
    """f = (u^{1−α} − (1 − α)u − α)/(α(α − 1)), 0 < α < 1: α → 1 is the forward KL, α → 0 the reverse. coef 0.01."""
    if not 0 < alpha < 1:
        raise ValueError(
            f"loss.alpha={alpha} must lie between 0 and 1, for example 0.5. "
            "Its ends are loss=dph_forward_kl (α = 1) and loss=dph_reverse_kl_pef (α = 0)."
        )
    return _mixed(policy, batch, partial(_alpha, alpha), clip_low=clip_low, clip_high=clip_high, coef=coef)


def none(policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat) -> Terms:
    """No pull on D_pef: the clipped surrogate on D_exp alone. Rehearsed rows are only measured."""
    return _mixed(policy, batch, _forward_kl, clip_low=clip_low, clip_high=clip_high, coef=0.0)


@needs("reference")
def js_definition(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """The two halves of Jensen-Shannon where their samples are: KL(π_ref ‖ M) on D_pef, KL(π ‖ M) on D_exp.

    M = (π_ref + π)/2 per token; the reference runs along, since D_exp's rows are the policy's own. With
    v = log(π/π_ref) the values are log(π_ref/M) = ln 2 − softplus(v) on rehearsed rows and log(π/M) = ln 2 −
    softplus(−v) on explored ones; a single token's may be negative, their expectations are not.

    coef holds for both halves. The paper's App. C weighs the half on D_exp by a number that the sizes of the two
    streams decide alone, so that both weigh alike in its one average over all rows: rows of D_pef over rows of D_exp.
    Here each stream is averaged over its own tokens, which does exactly that.

    Differs from the paper, which gives no gradient: on explored rows it is that of the expectation under π,
    r·(log(π/M) + ½ − σ(v)) with r = π/π_old. These samples move with π, so differentiating the logarithm alone would
    not be the gradient of a divergence. (Any multiple of r may be added, its mean is 0; with ½ it is 0 at π = π_ref.)
    """
    mixed = _mixed(policy, batch, _reference_to_middle, clip_low=clip_low, clip_high=clip_high, coef=coef)
    return _also_explored(mixed, policy, batch, _policy_to_middle, coef)


@needs("reference")
def reverse_kl(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """The baseline: 1/u − 1 + log u (k3 of KL(π ‖ π_ref)) on the rows of both streams, the paper's coef 0.01.

    Its gradient is that of the value, as everywhere in GRPO; beyond |log u| = 20 the derivative stays where it is.
    On stored responses, which are π_ref's and not π's, k3's expectation is χ²(π_ref ‖ π) − KL(π_ref ‖ π): it covers
    mass, more fiercely than the forward KL as u → 0. What the reverse KL itself does there: `reverse_kl_pef`.
    """
    mixed = _mixed(policy, batch, _reverse_kl, clip_low=clip_low, clip_high=clip_high, coef=coef)
    return _also_explored(mixed, policy, batch, lambda v, _: _reverse_kl(v), coef)


def reverse_kl_pef(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """f = u log u − u + 1: KL(π ‖ π_ref) on D_pef alone, where the other generators act; `alpha` as α → 0. coef 0.01.

    Differs from the paper, whose baseline is `reverse_kl`: that one also holds back what is explored, so that it and
    the forward KL differ in two things at once.
    """
    return _mixed(policy, batch, _reverse_kl_generator, clip_low=clip_low, clip_high=clip_high, coef=coef)


def _mixed(
    policy: Policy, batch: Batch, generator: Generator, *, clip_low: float, clip_high: float, coef: float
) -> Terms:
    if not coef >= 0:
        raise ValueError(f"loss.coef={coef} must be 0 or more, for example 0.01.")
    rehearse = _rehearsed(batch)
    explore = grpo(policy, batch, clip_low=clip_low, clip_high=clip_high, dual_clip=None)
    log_ratio = torch.where(rehearse, batch.log_ratio(policy.logp), 0.0)
    value, derivative = generator(log_ratio.detach())
    pull = coef * (value + derivative * (log_ratio - log_ratio.detach()))
    return Terms(
        loss=torch.where(rehearse, pull, explore.loss),
        metrics={
            "clip_fraction": torch.where(rehearse, 0.0, explore.metrics["clip_fraction"]),
            "rehearse": torch.where(rehearse, value, 0.0),
            "rehearse_log_ratio": -log_ratio.detach(),
        },
    )


def _also_explored(
    mixed: Terms, policy: Policy, batch: Batch, penalty: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], coef: float
) -> Terms:
    """Add coef·penalty(v, r) → (value, derivative) on explored rows, v = log(π/π_ref) and r = π/π_old there."""
    assert batch.logp_ref is not None  # @needs("reference")
    here = batch.mask & ~_rehearsed(batch)
    v = torch.where(here, policy.logp - batch.logp_ref, 0.0)
    r = batch.log_ratio(policy.logp).detach().clamp(-LIMIT, LIMIT).exp()
    value, derivative = penalty(v.detach(), r)
    added = torch.where(here, coef * (value + derivative * (v - v.detach())), 0.0)
    return Terms(mixed.loss + added, {**mixed.metrics, "explore_penalty": torch.where(here, value, 0.0)})


def _rehearsed(batch: Batch) -> Tensor:
    """[B, 1] bool: rows that hold a stored response of the base policy."""
    if batch.kind is None:
        raise ValueError(
            "The DPH losses need rehearsed responses of the base policy in the batch (Batch.kind), which the presample "
            "stage provides: choose one of them by its name, such as loss=dph_forward_kl, which brings the stage along."
        )
    return (batch.kind == REHEARSE)[:, None]


def _forward_kl(log_u: Tensor) -> tuple[Tensor, Tensor]:
    grown = torch.expm1(log_u.clamp(max=LIMIT))
    return grown - log_u, grown


def _js(log_u: Tensor) -> tuple[Tensor, Tensor]:
    u = log_u.clamp(max=LIMIT).exp()
    share = logsigmoid(log_u) + math.log(2)  # log of u/((u + 1)/2)
    return u * share - (softplus(log_u) - math.log(2)), u * share


def _alpha(alpha: float, log_u: Tensor) -> tuple[Tensor, Tensor]:
    capped = log_u.clamp(max=LIMIT)
    numerator = torch.expm1((1 - alpha) * capped) - (1 - alpha) * torch.expm1(capped)
    return numerator / (alpha * (alpha - 1)), (capped.exp() - ((1 - alpha) * capped).exp()) / alpha


def _reverse_kl(log_u: Tensor) -> tuple[Tensor, Tensor]:
    grown = torch.expm1(-log_u.clamp(min=-LIMIT))
    return grown + log_u, -grown


def _reverse_kl_generator(log_u: Tensor) -> tuple[Tensor, Tensor]:
    capped = log_u.clamp(max=LIMIT)
    slope = capped * capped.exp()
    return slope - torch.expm1(capped), slope


def _reference_to_middle(log_u: Tensor) -> tuple[Tensor, Tensor]:
    return math.log(2) - softplus(log_u), -log_u.sigmoid()


def _policy_to_middle(v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    value = math.log(2) - softplus(-v)
    return value, r * (value + 0.5 - v.sigmoid())
