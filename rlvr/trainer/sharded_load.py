"""Weights from safetensors into a sharded model: each rank reads its own part and never holds the whole."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlvr.model.load import load_model, skeleton
from rlvr.trainer import tensor_files
from rlvr.trainer.lora import is_adapter

log = logging.getLogger("rlvr")


def load_for_shards(directory: Path) -> PreTrainedModel:
    """A model without weights, which `fill` gives once they are sharded; with a warning the whole model in float32
    where the files name their tensors otherwise than the model does, as some architectures' do.
    """
    model = skeleton(directory)
    shapes = stored_shapes(directory)
    odd = [names[0] for names, p in _named(model).values() if shapes.get(_stored(names, shapes)) != p.shape]
    if not odd:
        return model
    log.warning("every rank reads the whole model: %s has no %s of that shape", directory, ", ".join(sorted(odd)[:3]))
    return load_model(directory, dtype=torch.float32)


def is_empty(model: nn.Module) -> bool:
    return any(p.is_meta for p in model.parameters())


@torch.no_grad()
def fill(module: nn.Module, model: PreTrainedModel, device: torch.device) -> None:
    """Read the weights of `model`, part of the sharded `module`, from the directory of its skeleton, in the precision
    that the model has. Called by all ranks.
    """
    assert model.name_or_path is not None
    directory = Path(model.name_or_path)
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)
    shapes = stored_shapes(directory)
    wanted = {_stored(names, shapes): p.detach() for names, p in _named(model).values()}
    tensor_files.load(wanted, directory)


def stored_shapes(directory: Path) -> dict[str, torch.Size]:
    """Shape of each tensor in the safetensors files of a directory, from their headers."""
    shapes = dict[str, torch.Size]()
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - what is opened is no mapping
                shapes[name] = torch.Size(opened.get_slice(name).get_shape())
    return shapes


def _named(model: nn.Module) -> dict[int, tuple[list[str], Tensor]]:
    """Each parameter with all its names: a tied one has several, and a file may hold it under any of them."""
    named = dict[int, tuple[list[str], Tensor]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if is_adapter(name):
            continue  # no file holds it
        names, _ = named.setdefault(id(parameter), ([], parameter))
        names.append(name)
    return named


def _stored(names: list[str], shapes: dict[str, torch.Size]) -> str:
    return next((name for name in names if name in shapes), names[0])
