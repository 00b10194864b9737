"""DPH-RL (arXiv:2509.07430): learn on hard prompts, and on easy ones stay near the answers of the base policy.

A batch has two streams (`rlvr/rollout/presample.py`). Rows of kind 0 explore: they are sampled by the policy for
prompts of D_exp. Rows of kind 1 rehearse: each is one stored response of the base policy to a prompt of D_pef, with the
base policy's log-probabilities as `logp_old`. Every loss here is, per token,

    explore   max(−A·r, −A·clip(r, 1 − clip_low, 1 + clip_high))   r = π/π_old
    rehearse  coef · f(u)                                          u = π/π_ref on the stored response

and the trainer adds the means over the tokens of each stream: L_exp + coef·L_pef. Each f is 0 at u = 1 and at least 0
everywhere, so that a stored response costs nothing while π = π_ref. Metrics [B, T], 0 on rows of the other stream:
`clip_fraction`; `rehearse`, the value f(u), and `rehearse_log_ratio`, −log u, whose mean over stored responses
estimates KL(π_ref ‖ π).

Beyond u = e^20 the derivatives keep their value at e^20: they still pull towards u = 1, and are finite.
"""

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

# ℓ = log u → (f(u), d f/dℓ = u·f'(u)): as in rlvr/objective/divergence.py the derivative is in closed form, not from
# automatic differentiation.
Generator = Callable[[Tensor], tuple[Tensor, Tensor]]


def forward_kl(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """f = u − 1 − log u: KL(π_ref ‖ π), the paper's coef 0.01.

    Differs from the paper, which has f = −log u, with the same expectation over π_ref (E[u] = 1): this form is never
    negative and has no gradient at u = 1.
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
    return _mixed(policy, batch, partial(_alpha, alpha), clip_low=clip_low, clip_high=clip_high, coef=coef)


def none(policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat) -> Terms:
    """No loss on D_pef: the clipped surrogate on D_exp alone. Rehearsed rows only have metrics."""
    return _mixed(policy, batch, _forward_kl, clip_low=clip_low, clip_high=clip_high, coef=0.0)


@needs("reference")
def js_definition(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """The two halves of Jensen-Shannon, each on its samples: KL(π_ref ‖ M) on D_pef, KL(π ‖ M) on D_exp.

    M = (π_ref + π)/2 per token; the reference policy is evaluated too, since the rows of D_exp are samples of the
    policy. With v = log(π/π_ref) the values are log(π_ref/M) = ln 2 − softplus(v) on rehearsed rows and log(π/M) =
    ln 2 − softplus(−v) on explored ones; the value of a single token may be negative, the expectations are not.

    coef multiplies both halves. The paper's App. C weights the half on D_exp by the number of rows of D_pef over that
    of D_exp, so that both halves have the same weight in its one average over all rows. Here each stream is averaged
    over its own tokens, which has exactly this effect.

    Differs from the paper, which specifies no gradient: on explored rows it is that of the expectation under π,
    r·(log(π/M) + ½ − σ(v)) with r = π/π_old. These samples depend on π, so that the derivative of the logarithm alone
    would not be the gradient of a divergence. (A multiple of r may be added, since it adds a multiple of E_π[∇log π] =
    0; with ½ the gradient is 0 at π = π_ref.)
    """
    mixed = _mixed(policy, batch, _reference_to_middle, clip_low=clip_low, clip_high=clip_high, coef=coef)
    return _also_explored(mixed, policy, batch, _policy_to_middle, coef)


@needs("reference")
def reverse_kl(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """1/u − 1 + log u (k3 of KL(π ‖ π_ref)) on the rows of both streams, the paper's coef 0.01.

    Differs from the paper, whose baseline RKL is GRPO with this penalty (`trainer.kl`): its responses to prompts of
    D_pef too are samples of the policy.

    The gradient is that of the value, as usual in GRPO; beyond |log u| = 20 the derivative is constant. On stored
    responses, which are samples of π_ref and not of π, the expectation of k3 is χ²(π_ref ‖ π) − KL(π_ref ‖ π): it is
    mass-covering, more strongly than the forward KL as u → 0. For the reverse KL itself see `reverse_kl_pef`.
    """
    mixed = _mixed(policy, batch, _reverse_kl, clip_low=clip_low, clip_high=clip_high, coef=coef)
    return _also_explored(mixed, policy, batch, lambda v, _: _reverse_kl(v), coef)


def reverse_kl_pef(
    policy: Policy, batch: Batch, *, clip_low: NonNegativeFloat, clip_high: NonNegativeFloat, coef: NonNegativeFloat
) -> Terms:
    """f = u log u − u + 1: KL(π ‖ π_ref) on D_pef alone, like the other generators; `alpha` as α → 0. coef 0.01.

    Not in the paper, whose baseline RKL is GRPO with a penalty: that one penalises explored rows and rehearses nothing,
    so that it differs from the forward KL in two more respects.
    """
    return _mixed(policy, batch, _reverse_kl_generator, clip_low=clip_low, clip_high=clip_high, coef=coef)


def _mixed(
    policy: Policy, batch: Batch, generator: Generator, *, clip_low: float, clip_high: float, coef: float
) -> Terms:
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
    """Add coef·penalty(v, r) → (value, derivative) on explored rows, where v = log(π/π_ref) and r = π/π_old."""
    assert batch.logp_ref is not None  # @needs("reference")
    explored = batch.mask & ~_rehearsed(batch)
    v = torch.where(explored, policy.logp - batch.logp_ref, 0.0)
    r = batch.log_ratio(policy.logp).detach().clamp(-LIMIT, LIMIT).exp()
    value, derivative = penalty(v.detach(), r)
    added = torch.where(explored, coef * (value + derivative * (v - v.detach())), 0.0)
    return Terms(mixed.loss + added, {**mixed.metrics, "explore_penalty": torch.where(explored, value, 0.0)})


def _rehearsed(batch: Batch) -> Tensor:
    """[B, 1] bool: rows that are a stored response of the base policy. Raises ValueError if rows have no kind."""
    if batch.kind is None:
        raise ValueError(
            "The DPH losses need rehearsed responses of the base policy in the batch (Batch.kind), which the presample "
            "stage provides: choose one of them by its name, such as loss=dph_forward_kl, which includes the stage."
        )
    return (batch.kind == REHEARSE)[:, None]


def _forward_kl(log_u: Tensor) -> tuple[Tensor, Tensor]:
    u_minus_one = torch.expm1(log_u.clamp(max=LIMIT))
    return u_minus_one - log_u, u_minus_one


def _js(log_u: Tensor) -> tuple[Tensor, Tensor]:
    u = log_u.clamp(max=LIMIT).exp()
    log_share = logsigmoid(log_u) + math.log(2)  # log of u/((u + 1)/2)
    return u * log_share - (softplus(log_u) - math.log(2)), u * log_share


def _alpha(alpha: float, log_u: Tensor) -> tuple[Tensor, Tensor]:
    capped = log_u.clamp(max=LIMIT)
    numerator = torch.expm1((1 - alpha) * capped) - (1 - alpha) * torch.expm1(capped)
    return numerator / (alpha * (alpha - 1)), (capped.exp() - ((1 - alpha) * capped).exp()) / alpha


def _reverse_kl(log_u: Tensor) -> tuple[Tensor, Tensor]:
    inverse_minus_one = torch.expm1(-log_u.clamp(min=-LIMIT))
    return inverse_minus_one + log_u, -inverse_minus_one


def _reverse_kl_generator(log_u: Tensor) -> tuple[Tensor, Tensor]:
    capped = log_u.clamp(max=LIMIT)
    slope = capped * capped.exp()
    return slope - torch.expm1(capped), slope


def _reference_to_middle(log_u: Tensor) -> tuple[Tensor, Tensor]:
    return math.log(2) - softplus(log_u), -log_u.sigmoid()


def _policy_to_middle(v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    value = math.log(2) - softplus(-v)
    return value, r * (value + 0.5 - v.sigmoid())
