from pathlib import Path

import pytest
import torch

from rlvr.model.load import load
from rlvr.model.table import table
from rlvr.model.tokenizer import encode
from rlvr.task.classes import Classes


def make_classes(classes: int = 7, contexts: int = 3, seed: int = 0) -> Classes:
    return Classes(classes=classes, contexts=contexts, seed=seed)


def test_each_context_has_one_class_for_good() -> None:
    task = make_classes()
    assert task.size("train") == task.size("test") == 3
    for index in range(3):
        problem = task.problem("train", index)
        assert problem == task.problem("test", index) == make_classes().problem("train", index)
        assert task.solution(problem) == problem.answer
        assert problem.answer in task.answers


def test_classes_are_spread_and_depend_on_the_seed() -> None:
    draws = [[make_classes(1000, 200, seed).problem("train", i).answer for i in range(200)] for seed in (0, 1)]
    assert draws[0] != draws[1]
    # 200 draws among 1000: 1000·(1 − 0.999^200) = 181 distinct ones are expected, with deviation below 4
    assert 165 <= len(set(draws[0])) <= 197


def test_only_the_right_word_earns_a_reward() -> None:
    task = make_classes()
    problem = task.problem("train", 1)
    wrong = next(w for w in task.answers if w != problem.answer)
    rewards = task.reward([(problem, text) for text in (problem.answer, wrong, "CONTEXT_1", "")])
    assert [r.value for r in rewards] == [1, 0, 0, 0]
    assert [r.outcome for r in rewards] == ["correct", "wrong", "unparsable", "unparsable"]


def test_a_table_starts_uniform_over_the_classes_and_nothing_else(tmp_path: Path) -> None:
    # More classes times contexts than the table reads demonstrations: `answers` names them all.
    task = make_classes(600, 10)
    model, tokenizer = load(table(task, tmp_path), dtype="float32")
    for index in range(10):
        ids = torch.tensor([encode(tokenizer, task.problem("train", index).prompt)])
        with torch.no_grad():
            probability = model(ids).logits[0, -1].softmax(-1)
        words = torch.tensor(encode(tokenizer, " ".join(task.answers)))
        assert probability[words].tolist() == pytest.approx([1 / 600] * 600, rel=1e-5)
