"""Terms that can be added to any loss: KL divergence from the reference policy, and entropy."""

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]
Penalty = Literal["k1", "k2", "k3", "k3_ratio"]  # estimators as a term of a loss


def kl(logp: Tensor, logp_ref: Tensor, estimator: Estimator, *, mask: Tensor | None = None) -> Tensor:
    """Per-token estimate of KL(π ‖ π_ref), [B, T] nats, with gradient (Schulman 2020, "Approximating KL divergence").

    logp, logp_ref: [B, T] nats. With d = logp_ref − logp: k1 = −d, k2 = ½d², k3 = e^d − d − 1 with d clamped to ±20
    (no gradient beyond that range). mask: [B, T] bool; elsewhere the result is 0 and without gradient, whatever the
    inputs are there.
    """
    d = logp_ref - logp
    if mask is not None:
        d = torch.where(mask, d, 0.0)
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            d = d.clamp(-20, 20)
            return torch.expm1(d) - d


def kl_loss(logp: Tensor, logp_ref: Tensor, estimator: Penalty, *, logp_old: Tensor, mask: Tensor) -> Tensor:
    """`kl` as a term of a loss, [B, T] nats. For k1 with the gradient of k2, an unbiased estimate of the divergence's.

    The gradient of k1 itself is that of logp alone, whatever the reference: 0 on average for samples of the policy
    itself, and away from the policy that sampled in every later update of a rollout.

    k3_ratio: π/π_old times k3 (DeepSeek-V3.2, arXiv:2512.02556; TRL's default). The ratio has a gradient, so that of
    the term is π/π_old · log(π/π_ref) · ∇logp: without bias also after the first update of a rollout, where the other
    estimators average over samples of π_old. logp_old: [B, T] nats, under π_old; log-ratios are clamped to ±20.
    """
    if estimator == "k3_ratio":
        ratio = torch.where(mask, logp - logp_old, 0.0).clamp(-20, 20).exp()
        return ratio * kl(logp, logp_ref, "k3", mask=mask)
    value = kl(logp, logp_ref, estimator, mask=mask)
    if estimator != "k1":
        return value
    k2 = kl(logp, logp_ref, "k2", mask=mask)
    return value.detach() + k2 - k2.detach()


def entropy(logits: Tensor) -> Tensor:
    """Entropy H = −Σ p log p of softmax(logits), [...] nats, with gradient; a bonus enters a loss as −coef·H.

    logits: [..., V]; computed in float32 at least. Tokens with logit −inf have p = 0 and add nothing.
    """
    return log_sum_exp_and_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)))[1]


def log_sum_exp_and_entropy(z: Tensor, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """(log Σ e^z, entropy of softmax(z)), [...] each, of logits z [..., V] in float32 or float64.

    overwrite: z's memory is used for intermediate values, which no gradient can pass; z is of no use afterwards.

    With d = z − max z and S = Σ e^d: the first is max z + log S, the second log S − Σ d·e^d / S. The largest logit is
    subtracted, so that no two large numbers are subtracted from each other. PyTorch's log_softmax is not used,
    because on a CPU it adds up e^d word by word in float32: its error, which every log p has, reaches 1e-5 for 32,768
    words.
    """
    largest = z.detach().amax(-1, keepdim=True)
    lowest = torch.finfo(z.dtype).min / 2  # finite: 0 · −inf is NaN
    d = z.sub_(largest).clamp_(min=lowest) if overwrite else (z - largest).clamp(min=lowest)
    weight = d.exp()
    total = weight.sum(-1)
    log_total = total.log()
    weighted = weight.mul_(d) if overwrite else weight * d
    return largest[..., 0] + log_total, log_total - weighted.sum(-1) / total
