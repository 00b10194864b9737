from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.records import Problem
from rlvr.task.choice import Choice, named_choice
from tests.support.tasks import make_task, write_jsonl


def make_choice(folder: Path, rows: list[dict[str, Any]], **knobs: Any) -> Choice:
    where = write_jsonl(folder / "x.jsonl", rows)
    return make_task("choice", train=where, test=where, **knobs)


CITIES = ["Rome", "Paris", "Oslo", "Bern"]
FORMS: dict[str, dict[str, Any]] = {
    "mmlu": {"choices": CITIES, "answer": 1, "subject": "geography"},
    "mmlu_pro": {"options": CITIES, "answer": "B", "answer_index": 1},
    "arc": {"choices": {"text": CITIES, "label": ["1", "2", "3", "4"]}, "answerKey": "2"},
    "arc, a number": {"choices": {"text": CITIES, "label": ["1", "2", "3", "4"]}, "answerKey": 2},
    "columns": {"A": "Rome", "B": "Paris", "C": "Oslo", "D": "Bern", "answer": "B"},
    "text": {"options": CITIES, "answer": "Paris"},
    "number": {"options": CITIES, "answer": "1"},
}
FORMS = {name: {"prompt" if name == "columns" else "question": "Capital of France?", **f} for name, f in FORMS.items()}


@pytest.mark.parametrize("form", FORMS)
def test_usual_forms_are_read(tmp_path: Path, form: str) -> None:
    problem = make_choice(tmp_path, [FORMS[form]]).problem("test", 0)
    assert problem.answer == {"letter": "B", "choices": CITIES}
    assert problem.prompt.startswith("Capital of France?\n\nA) Rome\nB) Paris\nC) Oslo\nD) Bern\n\nThink step")


def test_the_right_answer_of_gpqa_stands_anywhere(tmp_path: Path) -> None:
    wrong = {f"Incorrect Answer {k}": city for k, city in ((1, "Rome"), (2, "Oslo"), (3, "Bern"))}
    rows = [{"Question": f"Capital of France ({i})?", "Correct Answer": "Paris\n", **wrong} for i in range(400)]
    task, again = make_choice(tmp_path, rows), make_choice(tmp_path, rows[::-1])
    problems = [task.problem("test", i) for i in range(400)]
    assert {p.prompt for p in problems} == {again.problem("test", i).prompt for i in range(400)}
    for problem in problems:
        assert sorted(problem.answer["choices"]) == sorted(CITIES)
        assert problem.answer["choices"]["ABCD".index(problem.answer["letter"])] == "Paris"
    letters = Counter(p.answer["letter"] for p in problems)
    assert all(abs(letters[letter] - 100) < 4 * 8.7 for letter in "ABCD")  # binomial(400, 1/4)


def test_choices_are_shuffled_on_demand(tmp_path: Path) -> None:
    task = make_choice(tmp_path, [{**FORMS["mmlu"], "question": f"{i}?"} for i in range(40)], shuffle=True)
    assert {task.problem("test", i).answer["letter"] for i in range(40)} == set("ABCD")


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("So it is \\boxed{B}.", "B"),
        ("\\boxed{A} no, \\boxed{B}", "B"),
        ("\\boxed{\\text{B}}", "B"),
        ("\\boxed{(B)}", "B"),
        ("\\boxed{$B$}", "B"),
        ("\\boxed{Paris}", "B"),
        ("\\boxed{B) Paris}", "B"),
        ("\\boxed{B) Rome}", None),  # letter and text differ
        ("\\boxed{A, B}", None),
        ("\\boxed{E}", None),  # there is no such choice
        ("\\boxed{b}", "B"),
        ("\\boxed{\\textbf{(B)}\\ Paris}", "B"),
        ("\\boxed{\\textbf{(B)}\\ Rome}", None),
        ("\\boxed{Answer: B}", "B"),
        ("\\boxed{\\text{The final answer is B}}", "B"),
        ("\\boxed{}", None),
        ("\\boxed{B", None),
        ("<answer>B</answer>", "B"),
        ("<answer>A</answer> <answer> (B) </answer>", "B"),
        ("The answer is (B).", "B"),
        ("**Answer:** B", "B"),
        ("ANSWER: $B$", "B"),
        ("The answer is (B) Paris", "B"),
        ("Answer: B) Paris", "B"),
        ("Answer: B) Rome", None),  # letter and text differ
        ("The answer is B because it is large.", None),
        ("I cannot answer a", None),
        ("Answer: **B**", "B"),
        ("The answer is **B.**", "B"),
        ("Answer: `B`", "B"),
        ("Answer: B (Paris)", "B"),
        ("Answer: B (Rome)", None),  # letter and text differ
        ("Answer: Option B", "B"),
        ("Answer: B", "B"),
        ("Answer: A\nNo.\nAnswer: B", "B"),
        ("B", "B"),  # nothing but a choice
        (" **(B)**\n", "B"),
        ("B) Paris", "B"),
        ("B) Rome", None),
        ("A B", None),
        ("<think>\nA or C?\n</think>\n\nB", "B"),
        ("<think>\nA or C?\nB", None),
        ("I take B", None),
        ("", None),
    ],
)
def test_what_names_a_choice(response: str, letter: str | None) -> None:
    assert named_choice(response, CITIES) == letter


def test_a_choice_is_read_where_the_task_marks_it(tmp_path: Path) -> None:
    assert named_choice("\\boxed{A} <answer>B</answer>", CITIES, "tag") == "B"
    assert named_choice("\\boxed{A}", CITIES, "tag") is None
    assert named_choice("Answer: (A)\nAnswer: **B**", CITIES, "answer") == "B"
    assert named_choice("The answer is B", CITIES, "answer") is None
    assert named_choice("The answer is B", CITIES, "whole") == "B"
    assert named_choice("So it is 7 of 9", ["7", "9"], "last_number") == "B"
    problem = make_choice(tmp_path, [FORMS["mmlu"]], marked="tag").problem("test", 0)
    assert problem.prompt.endswith("give the letter of the right choice between <answer> and </answer>.")


def test_texts_that_are_letters_are_letters_and_those_called_option_are_texts() -> None:
    assert named_choice(r"\boxed{\text{Option B}}", ["Option B", "Option A"]) == "A"
    assert named_choice("\\boxed{C}", ["C", "B", "A"]) == "C"


def test_rewards(tmp_path: Path) -> None:
    task = make_choice(tmp_path, [FORMS["mmlu"]])
    problem: Problem = task.problem("test", 0)
    rewards = task.reward([(problem, text) for text in ("\\boxed{B}", "\\boxed{A}", "\\boxed{?}", "none")])
    assert [r.outcome for r in rewards] == ["correct", "wrong", "unparsable", "unparsable"]
    assert [r.value for r in rewards] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "choices": ["a"], "answer": 0}, r"x.jsonl:1: choices is \['a'\], expected 2 to 16 choices"),
        ({"question": "?", "answer": 0}, r"x.jsonl:1: choices is None, expected 2 to 16 choices: a list, columns A"),
        ({"question": "?", "choices": CITIES, "answer": "Lima"}, r"answer is 'Lima', expected one of A, B, C, D"),
        ({"question": "?", "choices": CITIES, "answer": 4}, r"answer is 4, expected one of A"),
        ({"question": "?", "choices": ["1", "0"], "answer": "1"}, r"answer is '1', expected"),  # a text or a number?
    ],
)
def test_rows_without_a_right_choice_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_choice(tmp_path, [row])
    with pytest.raises(ValueError, match=r"must contain {choices}"):
        make_choice(tmp_path, [FORMS["mmlu"]], template="{problem}")


@pytest.mark.parametrize(("answer", "letter"), [("A", "A"), ("C", "B"), ("D", "C"), (2, "B"), ("3", "C"), ("z", "B")])
@pytest.mark.parametrize("form", ["columns", "list", "labels"])
def test_an_answer_names_its_column_where_another_is_null(tmp_path: Path, form: str, answer: Any, letter: str) -> None:
    """Columns A, C and D are shown as A, B and C. Number 2, counted from 0, is C: z."""
    texts = ["x", None, "z", "w", None]
    forms: dict[str, dict[str, Any]] = {
        "columns": dict(zip("ABCDE", texts, strict=True)),
        "list": {"options": texts},
        "labels": {"choices": {"text": texts, "label": list("ABCDE")}},
    }
    problem = make_choice(tmp_path, [{"question": "?", **forms[form], "answer": answer}]).problem("test", 0)
    assert problem.answer == {"letter": letter, "choices": ["x", "z", "w"]}
    assert "A) x\nB) z\nC) w\n" in problem.prompt


def test_an_answer_that_names_a_null_column_is_refused(tmp_path: Path) -> None:
    """Also if it is another column's text."""
    rows = [{"A": "x", "B": None, "C": "z", "D": "w", "answer": answer} for answer in ("B", 1, "1")]
    for row in (*rows, {"A": "C", "B": None, "C": "B", "D": "w", "answer": "B"}):
        message = r"x.jsonl:1: answer is .*, expected one of A, C, D.*; the one that it names is null"
        with pytest.raises(ValueError, match=message):
            make_choice(tmp_path, [{"question": "?", **row}])
