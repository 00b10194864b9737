"""Weights from safetensors into a sharded model: each rank reads its own part and never holds the whole model."""

import logging
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rlvr.model.hugging_face import PreTrainedModel
from rlvr.model.load import load_model, skeleton
from rlvr.model.structure import stored_buffers
from rlvr.trainer import tensor_files
from rlvr.trainer.lora import is_adapter

log = logging.getLogger("rlvr")


def load_for_shards(directory: Path) -> PreTrainedModel:
    """A model without weights, which `fill` loads once it is sharded.

    If the files name their tensors otherwise than the model does: the whole model in float32, with a warning.
    """
    model = skeleton(directory)
    shapes = stored_shapes(directory)
    named = [*_named(model).values(), *(([name], buffer) for name, buffer in stored_buffers(model).items())]
    missing = [names[0] for names, tensor in named if shapes.get(_stored(names, shapes)) != tensor.shape]
    if not missing:
        return model
    examples = ", ".join(sorted(missing)[:3])
    log.warning("every rank reads the whole model: %s has no %s of that shape", directory, examples)
    return load_model(directory, dtype=torch.float32)


@torch.no_grad()
def fill(module: nn.Module, model: PreTrainedModel, device: torch.device) -> None:
    """Read what the files of its skeleton's directory have of `model`, part of the sharded `module`: weights and
    buffers. Called by all ranks.
    """
    assert model.name_or_path is not None
    directory = Path(model.name_or_path)
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)
    shapes = stored_shapes(directory)
    tensors = {_stored(names, shapes): p.detach() for names, p in _named(model).values()}
    tensor_files.load(tensors | stored_buffers(model), directory)


def stored_shapes(directory: Path) -> dict[str, torch.Size]:
    """Shape of each tensor in the safetensors files of a directory, from their headers."""
    shapes = dict[str, torch.Size]()
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - `opened` is not a mapping
                shapes[name] = torch.Size(opened.get_slice(name).get_shape())
    return shapes


def _named(model: nn.Module) -> dict[int, tuple[list[str], Tensor]]:
    """Each parameter with all its names: a tied one has several, and a file may contain it under any of them."""
    named = dict[int, tuple[list[str], Tensor]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if is_adapter(name):
            continue  # adapters are in no file
        names, _ = named.setdefault(id(parameter), ([], parameter))
        names.append(name)
    return named


def _stored(names: list[str], shapes: dict[str, torch.Size]) -> str:
    """The name under which the files contain a parameter; if they lack it, its first name."""
    return next((name for name in names if name in shapes), names[0])
