"""Log-probabilities and entropies of response tokens, without ever holding the logits of all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlvr.model.head import factor, logits
from rlvr.model.structure import vocabulary_size
from rlvr.objective import penalty

# Logits in one chunk (512 MB in float32). More than one chunk: the backward pass computes them anew.
CHUNK = 2**27
TILE = 128  # rows that a GPU multiplies at once
ZERO = -104.0  # e^x is 0 in float32 from there down


def token_logp(
    head: nn.Module,
    hidden: Tensor,
    target: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool,
    with_entropy: bool = True,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """(logp [n], entropy [n]) float32 of target [n] under softmax(head(hidden) / temperature), hidden [n, h].

    with_entropy: else it is None, and several passes over all logits are saved. At most `chunk` logits exist at a time,
    in the forward and in the backward pass. They are float32 whatever hidden states and weights are, and so is the sum
    over chunks of the weights' gradient.
    """
    assert with_entropy or not entropy_gradient
    rows = max(1, chunk // vocabulary_size(head, hidden))
    rows -= rows % TILE if rows > TILE else 0
    if (len(hidden) <= rows and hidden.dtype == torch.float32) or not isinstance(head, nn.Linear):
        return _at_once(head(hidden), target, temperature, entropy_gradient, with_entropy)
    return _InChunks.apply(hidden, head.weight, head.bias, target, temperature, rows, entropy_gradient, with_entropy)


def _at_once(
    raw: Tensor, target: Tensor, temperature: float, entropy_gradient: bool, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Of logits [n, V] that fit into memory: autograd knows how."""
    z = raw.float() / temperature
    logp = z.gather(-1, target[:, None])[:, 0] - z.logsumexp(-1)
    if not with_entropy:
        return logp, None
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = penalty.entropy(z if entropy_gradient else z.detach())
    return logp, entropy


class _InChunks(torch.autograd.Function):
    """Chunks of `rows` tokens. Kept are log Σ e^z and the entropy: the backward pass computes the logits anew."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        rows: int,
        entropy_gradient: bool,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        logp, total = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
        entropy = torch.empty_like(logp) if with_entropy else None
        wide = factor(weight)
        for first in range(0, len(hidden), rows):
            some = slice(first, first + rows)
            z = _scaled(logits(hidden[some], wide, bias), temperature)
            total[some] = z.logsumexp(-1)
            logp[some] = z.gather(-1, target[some, None])[:, 0] - total[some]
            if entropy is not None:
                entropy[some] = penalty.entropy(z)
        ctx.save_for_backward(hidden, weight, bias, target, total, entropy)
        ctx.temperature, ctx.rows, ctx.entropy_gradient = temperature, rows, entropy_gradient
        if entropy is not None and not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logp: Tensor, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """With p = e^{z − log Σ e^z}: dz = d_logp·(1[target] − p) − d_entropy·p·(log p + H), z the logits over the
        temperature. On a GPU dz is rounded to half precision for the products, if hidden states are."""
        hidden, weight, bias, target, total, entropy = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        wide = factor(weight)
        d_logp = d_logp[:, None] / ctx.temperature
        for first in range(0, len(hidden), ctx.rows):
            some = slice(first, first + ctx.rows)
            log_p = _scaled(logits(hidden[some], wide, bias), ctx.temperature).sub_(total[some, None])
            if ctx.entropy_gradient:
                assert d_entropy is not None
                d_z = log_p.exp()
                by_entropy = d_entropy[some, None] / ctx.temperature
                d_z *= log_p.clamp_(min=ZERO).add_(entropy[some, None]).mul_(-by_entropy).sub_(d_logp[some])
            else:
                d_z = log_p.exp_().mul_(-d_logp[some])
            d_z.scatter_add_(1, target[some, None], d_logp[some])
            if d_bias is not None:
                d_bias += d_z.sum(0)
            if d_z.is_cuda:
                d_z = d_z.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[some] = _product(d_z, wide)
            if d_weight is not None:
                _add_product(d_weight, d_z.t(), hidden[some])
        return d_hidden, d_weight, d_bias, None, None, None, None, None


def _scaled(z: Tensor, temperature: float) -> Tensor:
    return z if temperature == 1 else z.div_(temperature)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left [a, b] times right [b, c], summed and given in float32."""
    if left.dtype == torch.float32:
        return left @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)  # type: ignore[call-overload]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left [a, b] times right [b, c] to total [a, c] float32, within the product: it never lies apart."""
    if left.dtype == torch.float32:
        total.addmm_(left, right.float())
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)  # type: ignore[call-overload]
