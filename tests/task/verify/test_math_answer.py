"""Verdicts on answers: hostile ones earn nothing, honest ones what they earned.

verdicts.csv has one verdict a line: the reason, the right answer, the content of the box, the outcome, a note.
"""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from rlvr.task.verify.math_answer import judge


def outcome(gold: str, answer: str) -> str:
    return judge({"gold": gold, "answer": f"\\boxed{{{answer}}}"})["outcome"]


VERDICTS: dict[str, list[dict[str, str]]] = defaultdict(list)
with Path(__file__).with_name("verdicts.csv").open(newline="", encoding="utf-8") as file:
    for verdict in csv.DictReader(file):
        VERDICTS[verdict["reason"]].append(verdict)


@pytest.mark.parametrize("reason", VERDICTS)
def test_verdicts(reason: str) -> None:
    for row in VERDICTS[reason]:
        given = outcome(row["right"], row["answer"])
        assert given == row["outcome"] or (row["outcome"] == "not correct" and given != "correct"), (row, given)


def test_a_problem_may_ask_for_a_percentage_or_an_interval() -> None:
    asked = {"gold": "25", "answer": r"\boxed{25\%}"}
    assert judge(asked)["outcome"] == "wrong"
    assert judge(asked | {"problem": "What percent of 8 is 2?"})["outcome"] == "correct"
    assert judge(asked | {"problem": r"If $x\%$ like it, find $x$."})["outcome"] == "correct"
    assert judge(asked | {"problem": "What is 20% of 125? And 50 percent of 50?"})["outcome"] == "wrong"
    between = {"gold": "(1,2)", "answer": r"\boxed{1<x<2}"}
    assert judge(between)["outcome"] == "wrong"
    assert judge(between | {"problem": "Solve. Give an interval."})["outcome"] == "correct"
    assert judge(between | {"problem": "Find all possible values of $x^2$."})["outcome"] == "correct"
    for problem in ("Find the value of $x$, as a point.", "Find the values of $x$ and $y$.", "Arrange the terms."):
        assert judge(between | {"problem": problem})["outcome"] == "wrong"


def test_a_wrong_value_is_wrong_however_it_is_written() -> None:
    assert outcome("5051", r"\sum_{k=1}^{100} k") == "wrong"


def test_bold_names_with_an_index_are_read() -> None:
    gold = r"$-\frac{2 z}{r^{3}} \mathbf{e}_{r}+\frac{1}{r^{2}} \mathbf{e}_{z}$"  # College Math
    assert judge({"gold": gold, "answer": f"\\boxed{{{gold}}}"}) == {"outcome": "correct"}


def test_a_right_answer_that_cannot_be_read_says_so() -> None:
    series = r"R=\infty, I=(-\infty, \infty)"
    assert judge({"gold": series, "answer": r"\boxed{1}"})["unreadable"] is True
    assert outcome(series, series.replace(" ", "")) == "correct"
    assert (judge({"gold": "5", "answer": r"\boxed{1}"}), outcome("", "1")) == ({"outcome": "wrong"}, "error")


@pytest.mark.slow
def test_an_answer_of_thousands_of_digits_is_no_error() -> None:
    assert outcome(r"\frac17", rf"0.\overline{{{'142857' * 1000}}}") == "unparsable"


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize(
    "answer",
    [
        r"\sum_{k=0}^{\infty}(-1)^k=42",
        r"\int_0^\infty \frac{1}{0}dx=42",
        r"\prod_{k=\Gamma(0)}^{(1)}k=42",
        r"\prod_{k=1}^{\infty}k\cdot\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ],
)
def test_an_answer_that_cannot_be_evaluated_is_no_error(answer: str, tolerance: float) -> None:
    request = {"gold": "42", "answer": f"\\boxed{{{answer}}}", "tolerance": tolerance}
    assert judge(request)["outcome"] in ("wrong", "unparsable")


def test_free_text_is_searched_as_before() -> None:
    assert judge({"gold": "144", "answer": "The answer is 144."})["outcome"] == "correct"
    assert judge({"gold": "144", "answer": "The answer is $12 \\cdot 12$."})["outcome"] == "unevaluated"
    assert judge({"gold": "12", "answer": "7 + 5"})["outcome"] == "unevaluated"
    assert judge({"gold": "120", "answer": "The answer is $5!$."})["outcome"] == "unevaluated"
    assert judge({"gold": "144", "answer": "I do not know."})["outcome"] == "unparsable"
    assert judge({"gold": "4t", "answer": "The answer is $4t$."})["outcome"] == "correct"
    assert judge({"gold": "4t", "answer": "The answer is $4$."})["outcome"] == "wrong"
    assert judge({"gold": "5", "answer": "The answer is $5 m$."})["outcome"] == "correct"
