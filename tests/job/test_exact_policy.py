import numpy as np
import pytest
import torch

from rlvr.job.exact_policy import exact_policy
from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.model.tokenizer import word_tokenizer
from rlvr.objective.advantage import dr_grpo
from rlvr.task.bandit import Bandit
from tests.trainer.tiny import make_trainer


def test_probabilities_are_those_of_the_table_and_advantages_those_of_the_rewards() -> None:
    task = Bandit(arms=4, centres=[0], widths=[1.0], heights=[1.0])
    tokenizer = word_tokenizer(task.vocabulary, task.end_word)
    prompt = np.array(tokenizer(task.problem("test", 0).prompt).input_ids)
    table = TablePolicy(TableConfig(vocab_size=len(tokenizer)))
    arms = [tokenizer.get_vocab()[arm] for arm in task.arms]
    logits = [0.5, -1.0, 2.0, 0.0]
    table.allow({int(prompt[-1]): arms})
    with torch.no_grad():
        table.model.table.weight[prompt[-1], arms] = torch.tensor(logits)
    columns = exact_policy(task, tokenizer, prompt, make_trainer(table), dr_grpo)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert columns["probability"].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert columns["reward"].tolist() == pytest.approx(task.rewards().tolist(), rel=1e-6)
    assert columns["advantage"].tolist() == pytest.approx((task.rewards() - task.rewards().mean()).tolist(), abs=1e-6)
    assert columns["arm"].tolist() == [0, 1, 2, 3]
