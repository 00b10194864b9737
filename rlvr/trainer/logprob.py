"""Log-probabilities and entropies of response tokens, without holding the logits of all tokens in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlvr.model.head import head_weight, logits
from rlvr.model.structure import vocabulary_size
from rlvr.objective import penalty

# Logits in one chunk (512 MB in float32). If there are several chunks, the backward pass computes the logits again.
CHUNK = 2**27
TILE = 128  # rows that a GPU multiplies at once
ZERO = -104.0  # e^x is 0 in float32 for x up to this


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

    with_entropy: False: entropy is None, which saves several passes over all logits.
    chunk: largest number of logits that exist at a time, in the forward and in the backward pass. Logits are float32
    for any type of hidden states and weights, and so is the sum over chunks of the weights' gradient.
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
    """`token_logp` for logits `raw` [n, V] that fit into memory, differentiated by autograd."""
    z = raw.float() / temperature
    logp = z.gather(-1, target[:, None])[:, 0] - z.logsumexp(-1)
    if not with_entropy:
        return logp, None
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = penalty.entropy(z if entropy_gradient else z.detach())
    return logp, entropy


class _InChunks(torch.autograd.Function):
    """`token_logp` in chunks of `rows` tokens. Only log Σ e^z and the entropy are saved: the backward pass computes the
    logits again.
    """

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
        wide = head_weight(weight)
        for first in range(0, len(hidden), rows):
            chunk = slice(first, first + rows)
            z = _scaled(logits(hidden[chunk], wide, bias), temperature)
            logp[chunk] = z.gather(-1, target[chunk, None])[:, 0]
            if entropy is None:
                total[chunk] = z.logsumexp(-1)
            else:
                total[chunk], entropy[chunk] = penalty.log_sum_exp_and_entropy(z, overwrite=True)
        logp -= total
        ctx.save_for_backward(hidden, weight, bias, target, total, entropy)
        ctx.temperature, ctx.rows, ctx.entropy_gradient = temperature, rows, entropy_gradient
        if entropy is not None and not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logp: Tensor, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """With z the logits over the temperature and p = e^{z − log Σ e^z}:
        dz = d_logp·(1[target] − p) − d_entropy·p·(log p + H).

        On a GPU dz is rounded to half precision for the matrix products if the hidden states are in half precision.
        """
        hidden, weight, bias, target, total, entropy = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        wide = head_weight(weight)
        d_logp = d_logp[:, None] / ctx.temperature
        for first in range(0, len(hidden), ctx.rows):
            chunk = slice(first, first + ctx.rows)
            log_p = _scaled(logits(hidden[chunk], wide, bias), ctx.temperature).sub_(total[chunk, None])
            if ctx.entropy_gradient:
                assert d_entropy is not None
                d_z = log_p.exp()
                d_entropy_z = d_entropy[chunk, None] / ctx.temperature
                d_z *= log_p.clamp_(min=ZERO).add_(entropy[chunk, None]).mul_(-d_entropy_z).sub_(d_logp[chunk])
            else:
                d_z = log_p.exp_().mul_(-d_logp[chunk])
            d_z.scatter_add_(1, target[chunk, None], d_logp[chunk])
            if d_bias is not None:
                d_bias += d_z.sum(0)
            if d_z.is_cuda:
                d_z = d_z.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[chunk] = _product(d_z, wide)
            if d_weight is not None:
                _add_product(d_weight, d_z.t(), hidden[chunk])
        return d_hidden, d_weight, d_bias, None, None, None, None, None


def _scaled(z: Tensor, temperature: float) -> Tensor:
    return z if temperature == 1 else z.div_(temperature)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left [a, b] times right [b, c], summed and returned in float32."""
    if left.dtype == torch.float32:
        return left @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)  # type: ignore[call-overload]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left [a, b] times right [b, c] to total [a, c] float32, without a tensor for the product itself."""
    if left.dtype == torch.float32:
        total.addmm_(left, right.float())
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)  # type: ignore[call-overload]
