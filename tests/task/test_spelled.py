from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.stages import task_identity
from rlvr.records import AnsweringTask, SolvedTask, TaughtTask
from rlvr.task.characters import read_response
from tests.support.tasks import make_task, write_jsonl


def rows(path: Path, numbers: range) -> str:
    return write_jsonl(path, [{"question": f"{n} mod 5", "answer": n % 5} for n in numbers])


def make(folder: Path, **knobs: Any) -> Any:
    train, test = rows(folder / "train.jsonl", range(100, 400)), rows(folder / "test.jsonl", range(380, 420))
    return make_task("spelled", **{"train": train, "test": test, **knobs})


def test_a_row_is_a_question_in_characters_and_its_answer(tmp_path: Path) -> None:
    task = make(tmp_path)
    problem = task.problem("train", 7)
    assert (problem.prompt, task.solution(problem)) == ("1 0 7 SPACE m o d SPACE 5", "2 end")
    responses = ["2 end", "SPACE 2 end", "3 end", "2", "2 2 end", "end", "PAD end", ""]
    outcomes = [reward.outcome for reward in task.reward([(problem, text) for text in responses])]
    assert outcomes == ["correct", "correct", "wrong", "unparsable", "wrong", "wrong", "unparsable", "unparsable"]
    assert [reward.value for reward in task.reward([(problem, text) for text in responses[:3]])] == [1, 1, 0]
    assert task.answer(problem, "2 SPACE SPACE 3 end") == "2 3"
    assert all(isinstance(task, protocol) for protocol in (AnsweringTask, SolvedTask, TaughtTask))


def test_demonstrations_are_training_problems_and_mistakes_answer_another(tmp_path: Path) -> None:
    """Of half mistakes with one of five answers, 0.5 + 0.5/5 = 0.6 are right; sd of 2000 draws 0.011."""
    right = {n: str(n % 5) for n in range(100, 400)}
    for mistakes, share in ((0.0, 1.0), (0.5, 0.6)):
        task = make(tmp_path, mistakes=mistakes, validation=0.1)
        shown = Counter[bool]()
        held_out = {task.problem(split, i).prompt for split in ("validation", "test") for i in range(task.size(split))}
        for index in range(2000):
            prompt, response = task.demonstration(index)
            assert prompt not in held_out
            number = int("".join(prompt.split(" ")[:3]))
            assert number < 380  # 380 to 399 stand in the test file, too
            shown[read_response(response) == right[number]] += 1
        assert shown[True] / 2000 == pytest.approx(share, abs=0.045 if mistakes else 0)


def test_a_base_policy_depends_on_what_it_is_taught_alone(tmp_path: Path) -> None:
    first = task_identity(make(tmp_path))
    assert task_identity(make(tmp_path, max_tokens=9)) == first
    assert task_identity(make(tmp_path, mistakes=0.5)) != first
    more = rows(tmp_path / "more.jsonl", range(100, 402))  # 400 and 401 stand in the test file
    assert task_identity(make(tmp_path, train=more)) == first
    assert task_identity(make(tmp_path, train=rows(tmp_path / "more.jsonl", range(99, 400)))) != first


REFUSED = {
    "too long": ({"answer": "12345"}, {"max_tokens": 5}, r"train.jsonl:1: the answer '12345' has 5 char"),
    "no number": ({"answer": float("nan")}, {}, "train.jsonl:1: answer is nan, expected a finite number"),
    "no ASCII": ({"answer": "16°"}, {}, r"has \['°'\]. For other texts take a language model: task=math"),
    "no answer": ({"answer": [1, 2]}, {}, r"train.jsonl:1: answer is \[1, 2\], expected a text or a number"),
    "nothing to learn": ({"answer": 1}, {}, "Every problem of task.train is also in task.test"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_learned_is_refused(reason: str, tmp_path: Path) -> None:
    row, knobs, message = REFUSED[reason]
    path = write_jsonl(tmp_path / "train.jsonl", [{"question": "1?", **row}])
    with pytest.raises(ValueError, match=message):
        make_task("spelled", train=path, test=path, **knobs)


def test_the_longest_of_all_answers_decides_the_advice(tmp_path: Path) -> None:
    """8 characters and the end: the first answer alone would ask for 7."""
    rows = [{"question": f"{n}?", "answer": "1" * n} for n in (6, 8, 7, 2)]
    path = write_jsonl(tmp_path / "train.jsonl", rows)
    with pytest.raises(ValueError, match=r"train.jsonl:2: .* 8 characters, the most of 3 .* Pass task.max_tokens=9\."):
        make_task("spelled", train=path, test=path, max_tokens=5)
