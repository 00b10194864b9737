"""The tabular base policy of a task."""

from pathlib import Path

import pytest
import torch

from rlvr.model.load import load
from rlvr.model.table import table
from rlvr.model.table_policy import TablePolicy
from rlvr.model.tokenizer import encode
from rlvr.task.bandit import Bandit


def test_the_table_of_a_bandit_is_uniform_over_exactly_its_arms(tmp_path: Path) -> None:
    task = Bandit(arms=5, centres=[2], widths=[1], heights=[1])
    model, tokenizer = load(table(task, tmp_path), dtype="float32")
    assert isinstance(model, TablePolicy)
    probability = model(input_ids=torch.tensor([encode(tokenizer, "PULL")])).logits[0, -1].softmax(-1)
    expected = [0.2 if word in task.arms else 0.0 for word in task.vocabulary]
    assert probability.tolist() == pytest.approx(expected)
