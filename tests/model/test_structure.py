"""Layers and sizes that are read off a model, against those of its configuration."""

import pytest
import torch

from rlvr.model.structure import decoder_layers, hidden_size, num_embeddings, vocabulary_size
from rlvr.model.table_policy import TableConfig, TablePolicy
from tests.trainer.tiny import qwen2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_and_widths_are_those_of_the_configuration(device: str) -> None:
    """A table has no layers, and its hidden states are its logits."""
    model = qwen2().to(device)  # type: ignore[arg-type]
    assert decoder_layers(model) == list(model.model.layers)
    assert (num_embeddings(model), hidden_size(model)) == (16, 16)
    assert vocabulary_size(torch.nn.Linear(16, 40), torch.zeros(3, 16)) == 40
    table = TablePolicy(TableConfig(vocab_size=11)).to(device)  # type: ignore[arg-type]
    assert (decoder_layers(table), num_embeddings(table), hidden_size(table)) == ([], 11, 11)
    assert vocabulary_size(table.get_output_embeddings(), torch.zeros(3, 11)) == 11
