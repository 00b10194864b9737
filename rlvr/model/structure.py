"""The structure of a causal language model of transformers: its layers, and the sizes of its inputs and outputs."""

from typing import cast

import torch
from torch import Tensor, nn

from rlvr.model.hugging_face import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    return layers_of(model.get_decoder())


def layers_of(decoder: nn.Module) -> list[nn.Module]:
    """A decoder's layers: its largest list of modules; empty for a table policy."""
    stacks = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return list(max(stacks, key=lambda stack: sum(p.numel() for p in stack.parameters()), default=[]))


def is_empty(module: nn.Module) -> bool:
    """Whether weights are still to be loaded: some are on the meta device."""
    return any(p.is_meta for p in module.parameters())


def stored_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a model's files contain, by name: numbers of the model that no optimiser changes."""
    stored = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in stored}


def num_embeddings(model: PreTrainedModel) -> int:
    """The number of token ids that the model can read: 0 … this − 1."""
    return int(cast(Tensor, model.get_input_embeddings().weight).shape[0])


@torch.no_grad()
def hidden_size(model: PreTrainedModel) -> int:
    """Size of the last hidden states; a table policy's are its logits."""
    size = getattr(model.get_output_embeddings(), "in_features", None)
    if size is not None:
        return size
    ids = torch.zeros((1, 1), dtype=torch.int64, device=next(model.parameters()).device)
    return model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state.shape[-1]


def vocabulary_size(head: nn.Module, hidden: Tensor) -> int:
    """Width of the logits that `head` computes from hidden states; a table policy's head is the identity."""
    weight = getattr(head, "weight", None)
    return hidden.shape[-1] if weight is None else weight.shape[0]
