"""Logits in float32, whatever the type of hidden states and weights: rounding here would enter every log-probability.

The trainer and the native engine both compute their logits here, so that they round alike.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def head_weight(weight: Tensor) -> Tensor:
    """The weights in the form that `logits` needs: a GPU multiplies half precision into float32, a CPU does not."""
    return weight if weight.is_cuda else weight.float()


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [n, V] float32 of hidden [n, h]. weight: [V, h], as returned by `head_weight`."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        product = torch.mm(hidden, weight.t(), out_dtype=torch.float32)  # type: ignore[call-overload]
        return product if bias is None else product.add_(bias)
    return linear(hidden.float(), weight, None if bias is None else bias.float())


class WideHead:
    """The output head of a model with its current weights, prepared for many calls."""

    def __init__(self, head: nn.Module) -> None:
        self.head = head
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if isinstance(head, nn.Linear) and head.weight.dtype != torch.float32:
            self.weight, self.bias = head_weight(head.weight), head.bias

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of hidden [n, h]."""
        return self.head(hidden) if self.weight is None else logits(hidden, self.weight, self.bias)
