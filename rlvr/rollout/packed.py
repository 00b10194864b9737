"""Linear layers with their weights laid out once for the products of decoding, by oneDNN on a CPU.

Each step multiplies a few rows, one per response, by every weight. A product of so few rows spends a third of its time
on laying out the weights: done once for each set of weights, SmolLM2's layers multiply 64 rows 1.2 to 2 times as fast.
"""

from collections import Counter

import torch
from torch import Tensor, nn

from rlvr.model.hugging_face import PreTrainedModel

SMALLEST = 2**24  # weights of a model; with fewer they stay in the processor's cache, and the sums keep their order
ROWS = 64  # the layout is chosen for products of about so many rows; it serves any number


class PackedLinear(nn.Linear):
    """A frozen linear layer with its weight in the layout of the product; `weight` has the shape, and no memory."""

    packed: Tensor

    def pack(self, weight: Tensor) -> None:
        """Take a weight [out, in], in any float format."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(self.weight.dtype), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")


class PackedHead(PackedLinear):
    """The output head, whose weight may be that of the embeddings: it stays. Logits are float32 (`rlvr.model.head`)."""

    def pack(self, weight: Tensor) -> None:
        with torch.no_grad():
            self.weight.copy_(weight)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach().float(), ROWS)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return torch.ops.mkldnn._linear_pointwise(input.float(), self.packed, bias, "none", [], "")


def pack_layers(model: PreTrainedModel) -> dict[int, PackedLinear]:
    """Pack a frozen model's linear layers where this pays and torch can: the packed ones by the id of their weight."""
    head = model.get_output_embeddings()
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    linear = [module for module in model.modules() if type(module) is nn.Linear]
    layers = [layer for layer in linear if layer is head or uses[id(layer.weight)] == 1]
    weights = [layer.weight for layer in layers]
    on_cpu = all(weight.device.type == "cpu" and weight.dtype != torch.float16 for weight in weights)
    able = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    if not on_cpu or not able or sum(weight.numel() for weight in weights) < SMALLEST:
        return {}
    packed = dict[int, PackedLinear]()
    for layer in layers:
        layer.__class__ = PackedHead if layer is head else PackedLinear
        assert isinstance(layer, PackedLinear)
        layer.pack(layer.weight)
        if layer is not head:
            layer.weight.data = layer.weight.new_zeros(1).expand_as(layer.weight)
        packed[id(layer.weight)] = layer
    return packed
