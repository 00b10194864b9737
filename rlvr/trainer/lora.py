"""Low-rank adapters (LoRA, arXiv:2106.09685): all weights stay as they are, and small matrices beside them are trained.

The base policy is the model with its adapters off, so that no copy of it is needed. Exported weights are the sums of
weights and adapters, under the names of the model without adapters (`merged`).
"""

import contextlib
import logging
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlvr.model.hugging_face import PreTrainedModel
from rlvr.model.structure import decoder_layers

NAMES = ("lora_a", "lora_b")
MOST = 0.9  # share of the weights in a decoder's layers; the rest may be small: routers, convolutions

log = logging.getLogger("rlvr")


class Adapted(nn.Linear):
    """x ↦ W x + bias + alpha/rank · B A x. At first it equals the linear layer: B is 0."""

    lora_a: nn.Parameter  # A [rank, in]
    lora_b: nn.Parameter  # B [out, rank]
    scale: float
    active: bool

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out + linear(self.scale * linear(input, self.lora_a), self.lora_b) if self.active else out

    def difference(self) -> Tensor:
        """alpha/rank · B A, [out, in] float32: what merging adds to the weight."""
        return self.scale * (_full(self.lora_b) @ _full(self.lora_a))


def adapt(model: PreTrainedModel, *, rank: int, alpha: float, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Freeze a model, cast it to `dtype`, and add an adapter in float32 to every linear layer of its decoder's layers.

    A is initialised as `nn.Linear` initialises weights. Raises ValueError if there is no linear layer; subclasses do
    not count, as they may compute otherwise.
    """
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    linear_layers = [m for layer in decoder_layers(model) for m in layer.modules() if type(m) is nn.Linear]
    if not linear_layers:
        raise ValueError(
            f"trainer.lora_rank={rank}: adapters are for modules of the class torch.nn.Linear, and the layers of "
            f"{type(model).__name__} have none. Drop it to train all weights."
        )
    generator = torch.Generator().manual_seed(seed)
    for module in linear_layers:
        module.__class__ = Adapted
        assert isinstance(module, Adapted)
        bound = 1 / math.sqrt(module.in_features)
        a = torch.empty(rank, module.in_features).uniform_(-bound, bound, generator=generator)
        device = None if module.weight.is_meta else module.weight.device
        module.lora_a = nn.Parameter(a.to(device))
        module.lora_b = nn.Parameter(torch.zeros(module.out_features, rank, device=device))
        module.scale, module.active = alpha / rank, True


def warn_of_unadapted(model: PreTrainedModel) -> None:
    """Log the share of the weights in the decoder's layers that have adapters, if it is not most of them."""
    layers = decoder_layers(model)
    matrices = [p for layer in layers for n, p in layer.named_parameters() if p.ndim > 1 and not is_adapter(n)]
    num_adapted = sum(m.weight.numel() for layer in layers for m in layer.modules() if isinstance(m, Adapted))
    share = num_adapted / sum(p.numel() for p in matrices)
    if share < MOST:
        log.warning(
            "trainer.lora_rank: of the weights in the decoder's layers %.2g %% have adapters. The others, such as "
            "those of experts, belong to no torch.nn.Linear and are not trained",
            100 * share,
        )


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return name.rpartition(".")[2] in NAMES


@contextlib.contextmanager
def off(module: nn.Module) -> Iterator[None]:
    """Context in which the adapters are off: the model is the base policy."""
    adapted = [m for m in module.modules() if isinstance(m, Adapted)]
    for layer in adapted:
        layer.active = False
    try:
        yield
    finally:
        for layer in adapted:
            layer.active = True


@torch.no_grad()
def merged(model: nn.Module, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor in `dtype`) of every parameter, with adapters added to the weights they adapt; tied ones once.

    Adapters are added in float32. Other weights are cast before the ranks gather them if that makes them smaller: it
    gives the same bits, and half precision halves what the ranks send.
    """
    adapted = {f"{name}.weight": m for name, m in model.named_modules() if isinstance(m, Adapted)}
    for name, parameter in model.named_parameters():
        if name in adapted:
            yield name, (_full(parameter) + adapted[name].difference()).to(dtype)
        elif not is_adapter(name):
            yield name, _full(parameter, dtype)


def _full(parameter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """All ranks' shards of a parameter together, in `dtype`."""
    shard = parameter.detach()
    if dtype.itemsize < shard.dtype.itemsize:
        shard = shard.to(dtype)
    return (shard.full_tensor() if isinstance(shard, DTensor) else shard).to(dtype)
