"""Log-probabilities and entropies of response tokens, without holding the logits of all tokens in memory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlvr.model.head import WideHead, head_weight, logits
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
    compiled: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """(logp [n], entropy [n]) float32 of target [n] under softmax(head(hidden) / temperature), hidden [n, h].

    with_entropy: False: entropy is None, which saves several passes over all logits.
    compiled: torch.compile joins the passes over a chunk's logits into one or two, which a GPU's memory limits.
    chunk: largest number of logits that exist at a time, in the forward and in the backward pass. Logits are float32
    for any type of hidden states and weights, and so is the sum over chunks of the weights' gradient.
    """
    assert with_entropy or not entropy_gradient
    rows = max(1, chunk // vocabulary_size(head, hidden))
    rows -= rows % TILE if rows > TILE else 0
    if (len(hidden) <= rows and hidden.dtype == torch.float32) or not isinstance(head, nn.Linear):
        return _at_once(head(hidden), target, temperature, entropy_gradient, with_entropy)
    how = _How(temperature, rows, entropy_gradient, with_entropy, compiled)
    return _InChunks.apply(hidden, head.weight, head.bias, target, how)


def candidates_logp(
    head: nn.Module, hidden: Tensor, count: int, temperature: float, *, compiled: bool, chunk: int = CHUNK
) -> Tensor:
    """[n, count] float32: `token_logp` of the most probable tokens, in falling order. It takes `count` passes over the
    logits more than log-probabilities of targets do, and one to find the tokens, which has no gradient."""
    size = vocabulary_size(head, hidden)
    if count > size:
        raise ValueError(f"loss.num_candidates={count} is more than the vocabulary has, {size} tokens.")
    rows = max(1, chunk // size)
    with torch.no_grad():
        wide = WideHead(head)
        best = [wide(part).topk(count).indices for part in hidden.split(rows)]
    tokens = torch.cat(best) if best else hidden.new_zeros((0, count), dtype=torch.int64)
    how: dict[str, Any] = {"entropy_gradient": False, "with_entropy": False, "compiled": compiled, "chunk": chunk}
    return torch.stack([token_logp(head, hidden, t, temperature, **how)[0] for t in tokens.unbind(-1)], -1)


def _at_once(
    raw: Tensor, target: Tensor, temperature: float, entropy_gradient: bool, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """`token_logp` for logits `raw` [n, V] that fit into memory, differentiated by autograd."""
    z = raw.float() if temperature == 1 else raw.float() / temperature
    logp = z.gather(-1, target[:, None])[:, 0] - z.logsumexp(-1)
    if not with_entropy:
        return logp, None
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = penalty.entropy(z if entropy_gradient else z.detach())
    return logp, entropy


class _How(NamedTuple):
    """Arguments of `token_logp` that are no tensors. rows: tokens in one chunk."""

    temperature: float
    rows: int
    entropy_gradient: bool
    with_entropy: bool
    compiled: bool


class _InChunks(torch.autograd.Function):
    """`token_logp` in chunks of `how.rows` tokens, whose logits the backward pass computes again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, how: _How
    ) -> tuple[Tensor, Tensor | None]:
        logp, total = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
        entropy = torch.empty_like(logp) if how.with_entropy else None
        wide = head_weight(weight)
        statistics = _joined(_statistics) if how.compiled else _statistics
        for first in range(0, len(hidden), how.rows):
            chunk = slice(first, first + how.rows)
            logp[chunk], total[chunk], of_chunk = statistics(
                logits(hidden[chunk], wide, bias), target[chunk], how.temperature, how.with_entropy
            )
            if entropy is not None and of_chunk is not None:
                entropy[chunk] = of_chunk
        ctx.save_for_backward(hidden, weight, bias, target, total, entropy)
        ctx.how = how
        if entropy is not None and not how.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logp: Tensor, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """On a GPU the logits' gradient is rounded for the matrix products if hidden states are in half precision."""
        hidden, weight, bias, target, total, entropy = ctx.saved_tensors
        how: _How = ctx.how
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        wide = head_weight(weight)
        gradient = _joined(_gradient) if how.compiled else _gradient
        dtype = hidden.dtype if hidden.is_cuda else torch.float32
        for first in range(0, len(hidden), how.rows):
            chunk = slice(first, first + how.rows)
            of_entropy = (entropy[chunk], d_entropy[chunk]) if how.entropy_gradient and d_entropy is not None else None
            of_chunk = (logits(hidden[chunk], wide, bias), target[chunk], total[chunk], d_logp[chunk], of_entropy)
            d_z, of_bias = gradient(*of_chunk, how.temperature, dtype, bias is not None)
            if d_bias is not None and of_bias is not None:
                d_bias += of_bias
            if d_hidden is not None:
                d_hidden[chunk] = _product(d_z, wide)
            if d_weight is not None:
                _add_product(d_weight, d_z.t(), hidden[chunk])
        return d_hidden, d_weight, d_bias, None, None


@functools.cache
def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of logits, compiled: it passes over them as rarely as possible and leaves them as they are."""
    return torch.compile(function)


def _statistics(
    z: Tensor, target: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(log p of the target, log Σ e^z, entropy if `with_entropy`), [n] each, of logits z [n, V], which are overwritten.

    z, from here on, is over the temperature.
    """
    z = _scaled(z, temperature)
    of_target = z.gather(-1, target[:, None])[:, 0]
    if with_entropy:
        total, entropy = penalty.log_sum_exp_and_entropy(z, overwrite=True)
    else:
        total, entropy = z.logsumexp(-1), None
    return of_target - total, total, entropy


def _gradient(
    z: Tensor,
    target: Tensor,
    total: Tensor,
    d_logp: Tensor,
    of_entropy: tuple[Tensor, Tensor] | None,
    temperature: float,
    dtype: torch.dtype,
    with_bias: bool,
) -> tuple[Tensor, Tensor | None]:
    """(gradient of the logits [n, V] in `dtype`, its sum over n if `with_bias`), of logits that are overwritten.

    of_entropy: entropy and its gradient, [n] each; None: no gradient passes the entropy. With z the logits over the
    temperature and p = e^{z − log Σ e^z}: dz = d_logp·(1[target] − p) − d_entropy·p·(log p + H).
    """
    d_logp = d_logp[:, None] / temperature
    log_p = _scaled(z, temperature).sub_(total[:, None])
    if of_entropy is not None:
        entropy, d_entropy = (x[:, None] for x in of_entropy)
        d_z = log_p.exp()
        d_z *= log_p.clamp_(min=ZERO).add_(entropy).mul_(-d_entropy / temperature).sub_(d_logp)
    else:
        d_z = log_p.exp_().mul_(-d_logp)
    if torch.compiler.is_compiling():  # part of the same pass, which a scatter is not
        words = torch.arange(d_z.shape[1], device=d_z.device)
        d_z = torch.where(words == target[:, None], d_z + d_logp, d_z)
    else:
        d_z.scatter_add_(1, target[:, None], d_logp)
    return d_z.to(dtype), d_z.sum(0) if with_bias else None


def _scaled(z: Tensor, temperature: float) -> Tensor:
    """z over the temperature. It overwrites z, except in compiled code, which would take a pass more to do so."""
    if torch.compiler.is_compiling():
        return z / temperature
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
