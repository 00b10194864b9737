"""Linear layers with their weights laid out once for the products of decoding, by oneDNN on a CPU.

Each step multiplies a few rows, one per response, by every weight. A product of so few rows spends a third of its time
on laying out the weights: done once for each set of weights, SmolLM2's layers multiply 64 rows 1.2 to 2 times as fast.
"""

import torch
from torch import Tensor, nn

SMALLEST = 2**24  # weights of a model; with fewer they stay in the processor's cache, and the sums keep their order
ROWS = 64  # the layout is chosen for products of about so many rows; it serves any number


class Packed(nn.Linear):
    """A linear layer without a gradient that multiplies by `packed`; `weight` is the source that `pack` reads."""

    packed: Tensor

    def pack(self) -> None:
        """Lay out the weight as it is now."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


class PackedHead(Packed):
    """The output head: logits in float32, whatever the type of the weight (see `rlvr.model.head`)."""

    def pack(self) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().float(), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return torch.ops.mkldnn._linear_pointwise(input.float(), self.packed, bias, "none", [], "")


def packed_layers(model: nn.Module, head: nn.Module | None) -> list[Packed]:
    """Turn a frozen model's linear layers into packed ones, where this pays and torch can; they are packed already.

    head: the output head among them.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    weights = [layer.weight for layer in layers]
    on_cpu = all(weight.device.type == "cpu" and weight.dtype != torch.float16 for weight in weights)
    able = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if not on_cpu or not able or sum(weight.numel() for weight in weights) < SMALLEST:
        return []
    packed = list[Packed]()
    for layer in layers:
        layer.__class__ = PackedHead if layer is head else Packed
        assert isinstance(layer, Packed)
        layer.pack()
        packed.append(layer)
    return packed
