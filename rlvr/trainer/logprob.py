"""Log-probabilities and entropies of response tokens, without ever holding the logits of all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlvr.model.structure import vocabulary_size
from rlvr.objective import penalty

# Logits in one chunk (256 MB in float32). More than one chunk: the backward pass computes them anew.
CHUNK = 2**26


def token_logp(
    head: nn.Module, hidden: Tensor, target: Tensor, temperature: float, *, entropy_gradient: bool, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """(logp [n], entropy [n]) of target [n] under softmax(head(hidden) / temperature), hidden [n, h].

    At most `chunk` logits exist at a time, in the forward and in the backward pass.
    """

    def some(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float() / temperature
        logp = logits.gather(-1, target[:, None])[:, 0] - logits.logsumexp(-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = penalty.entropy(logits if entropy_gradient else logits.detach())
        return logp, entropy

    rows = max(1, chunk // vocabulary_size(head, hidden))
    if len(hidden) <= rows:
        return some(hidden, target)
    recompute = torch.is_grad_enabled()
    parts = [
        checkpoint(some, h, t, use_reentrant=False, preserve_rng_state=False) if recompute else some(h, t)
        for h, t in zip(hidden.split(rows), target.split(rows), strict=True)
    ]
    logp, entropy = zip(*parts, strict=True)
    return torch.cat(logp), torch.cat(entropy)
