"""A table policy is uniform where it may be, and learns nothing else."""

import torch

from rlvr.model.table_policy import TableConfig, TablePolicy
from tests.model.test_load import make_table


def test_a_fresh_table_is_uniform_and_reads_the_last_word_only() -> None:
    fresh = TablePolicy(TableConfig(vocab_size=4))
    assert not fresh(input_ids=torch.tensor([[1, 2]])).logits.any()
    table = make_table()
    one, two = (table(input_ids=torch.tensor([ids])).logits[0, -1] for ids in ([1, 2, 3], [6, 3]))
    assert torch.equal(one, two)
    assert torch.equal(one, table.model.table.weight[3])


def test_allowed_words_share_all_probability_and_the_others_never_learn() -> None:
    table = TablePolicy(TableConfig(vocab_size=5))
    table.allow({2: [0, 3, 4]})
    logp = table(input_ids=torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1)
    third = 1 / 3
    torch.testing.assert_close(logp.exp(), torch.tensor([third, 0, 0, third, third]))
    (-logp[3] + (logp.exp() * logp).sum()).backward()
    gradient = table.model.table.weight.grad
    assert gradient is not None
    assert gradient[2, [1, 2]].tolist() == [0.0, 0.0]  # exactly: an optimiser leaves them where they are
    assert torch.isfinite(gradient).all()
    assert gradient[2, 3] < 0 < gradient[2, 0]
