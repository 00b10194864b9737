"""Layers and sizes that are read off a model, against those of its configuration."""

from __future__ import annotations

import pytest
import torch

from rlvr.model.structure import decoder_layers, hidden_size, num_embeddings, vocabulary_size
from rlvr.model.table_policy import TableConfig, TablePolicy
from tests.trainer.tiny import qwen2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_transformer_has_the_layers_and_widths_of_its_configuration(device: str) -> None:
    model = qwen2().to(device)  # type: ignore[arg-type]
    assert decoder_layers(model) == list(model.model.layers)
    assert (num_embeddings(model), hidden_size(model)) == (16, 16)
    wide = torch.nn.Linear(16, 40)
    assert vocabulary_size(wide, torch.zeros(3, 16)) == 40


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_table_has_no_layers_and_its_hidden_states_are_logits(device: str) -> None:
    model = TablePolicy(TableConfig(vocab_size=11)).to(device)  # type: ignore[arg-type]
    assert decoder_layers(model) == []
    assert (num_embeddings(model), hidden_size(model)) == (11, 11)
    assert vocabulary_size(model.get_output_embeddings(), torch.zeros(3, 11)) == 11
