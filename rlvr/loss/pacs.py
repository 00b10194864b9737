"""PACS (arXiv:2509.02522): classifies right and wrong responses by the policy's implicit rewards within a group.

The score `grpo` is scale-free, and therefore has no term that keeps the policy near its reference. Above the floor ψ
does not change when every r̂ of a group grows tenfold, whatever β; the gradient is orthogonal to the centred r̂ and
proportional to 1/std. For R = (1, 0, 0) and log ratios (1, 0, 2) it is (−⅔, ⅓, ⅓), a tenth of that for (10, 0, 20); if
all three are wrong it is 0. `rloo` has (−1, −¼, 5/4) at (10, 0, 20), and draws three wrong ones together by ∓0.48 at
(1, 0, 2). A step orthogonal to the centred r̂ never reduces its spread, so that the policy drifts from a reference that
stays fixed: use `grpo` with trainer.reference_every=1, as released, or a low learning rate.
"""

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rlvr.objective.batch import (
    Batch,
    Policy,
    Terms,
    binary_rewards,
    check_values,
    needs,
    no_ratio,
    per_response,
    whole_groups,
)

Score = Literal["rloo", "dr_grpo", "grpo", "naive"]
Weight = Literal["balanced", "none", "only_positive", "only_negative"]
EPSILON = 1e-6


@binary_rewards
@no_ratio
@per_response
@whole_groups
@needs("reference")
def pacs(
    policy: Policy, batch: Batch, *, beta: PositiveFloat, score: Score, weight: Weight, std_floor: PositiveFloat
) -> Terms:
    """weight·BCE(σ(ψ), R) per response, [B], for rewards 0 and 1. The gradient includes that of ψ's baseline and std.

    The score ψ is computed from the implicit rewards r̂ = β·Σ_t (logp − logp_ref) of the G responses to one prompt:
    `rloo` r̂ − mean of the others (0 for a group of one), `dr_grpo` r̂ − mean, `grpo` (r̂ − mean)/(std + 1e-6) with
    the unbiased std, `naive` r̂. beta: > 0. weight: `balanced` G/(2·responses of the same class in the group), 1 where
    the group has one class; `none` 1; `only_positive` R; `only_negative` 1 − R.
    std_floor: > 0, the smallest std that `grpo` divides by, in units of r̂. Differs from the paper: while policy and
    reference are equal (with a reset before every rollout at each first update) the std is 0, its gradient is infinite,
    and 1e-6 would make the score's gradient a million times those of the other scores.

    metrics: "implicit_reward" r̂ and "score_accuracy", 1 where ψ has the sign of R − ½ (0 has none), [B].
    Raises ValueError for other rewards, and without a reference.
    """
    if batch.logp_ref is None:
        raise ValueError(
            "loss=pacs needs the log-probabilities of a reference policy and the batch has none: set Batch.logp_ref, "
            "or train with trainer=fsdp, which computes them."
        )
    check_values(pacs, batch)
    log_ratio = torch.where(batch.mask, policy.logp - batch.logp_ref, 0.0)
    wide = torch.promote_types(log_ratio.dtype, torch.float32)
    implicit = beta * log_ratio.to(wide).sum(-1)
    label = batch.reward.to(wide)
    real = batch.mask.any(-1).to(wide)
    psi = _score(implicit, real, batch, score, std_floor)
    loss = _weight(label, real, batch, weight) * binary_cross_entropy_with_logits(psi, label, reduction="none")
    accuracy = (psi * (label - 0.5) > 0).to(wide)
    return Terms(loss=loss, metrics={"implicit_reward": implicit.detach(), "score_accuracy": accuracy})


@binary_rewards
@no_ratio
@per_response
@whole_groups
@needs("reference")
def pacs_actor(
    policy: Policy,
    batch: Batch,
    *,
    beta: PositiveFloat,
    score: Score,
    weight: Weight,
    std_floor: PositiveFloat,
    actor: NonNegativeFloat,
) -> Terms:
    """`pacs` plus actor·sg(loss)·Σ_t logp per response, [B]: the first term of Eq. 5, which the released code omits.

    The samples depend on the policy, so that the gradient of the expected cross-entropy has two parts: that of the
    cross-entropy on the samples (`pacs`, the critic), and one that lowers the log-probability of a response with its
    cross-entropy as weight (the actor). With actor = 1, score = naive and weight = none their sum is exactly that
    gradient, for samples of the policy itself: like `rlvr.loss.reinforce` it has no ratio. If the score compares
    responses of a group, the paper's form uses each response's cross-entropy, as here, and neglects that the response
    also enters those of the others.

    The value is that of `pacs`. metrics: those of `pacs`. actor: 0 or more. Raises ValueError as `pacs` does.
    """
    terms = pacs(policy, batch, beta=beta, score=score, weight=weight, std_floor=std_floor)
    logp = torch.where(batch.mask, policy.logp, 0.0).to(terms.loss.dtype).sum(-1)
    return Terms(terms.loss + actor * terms.loss.detach() * (logp - logp.detach()), terms.metrics)


def _score(implicit: Tensor, real: Tensor, batch: Batch, score: Score, std_floor: float) -> Tensor:
    """ψ, [B]. real: 1 where a response has tokens, [B]; one without (filtered out) does not count in its group."""
    if score == "naive":
        return implicit
    size = _sum(real, batch).clamp(min=1)
    centred = real * (implicit - _sum(implicit, batch) / size)
    others = (size - 1).clamp(min=1)
    if score == "dr_grpo":
        return centred
    if score == "rloo":
        return centred * size / others
    variance = _sum(centred.square(), batch) / others
    # At the floor the variance has no gradient: the score is then that of dr_grpo divided by a constant.
    return centred / (variance.clamp(min=std_floor**2).sqrt() + EPSILON)


def _weight(label: Tensor, real: Tensor, batch: Batch, weight: Weight) -> Tensor:
    if weight == "none":
        return torch.ones_like(label)
    if weight == "only_positive":
        return label
    if weight == "only_negative":
        return 1 - label
    size, right = _sum(real, batch), _sum(real * label, batch)
    of_class = torch.where(label > 0.5, right, size - right)
    return torch.where(of_class == size, 1.0, size / (2 * of_class.clamp(min=1)))


def _sum(values: Tensor, batch: Batch) -> Tensor:
    """The sum of `values` [B] over each row's group, [B]."""
    return values.new_zeros(batch.num_groups).index_add(0, batch.group, values)[batch.group]
