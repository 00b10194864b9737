"""Countdown: expressions are judged by exact arithmetic, and what differs in form alone is one answer."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.records import CanonicalTask, Problem
from rlvr.task.countdown import Countdown, answers, expressions, parse
from tests.support.tasks import make_task

HAND = Problem("hand", "make 24 from 3 4 8 9 :", [24, 3, 4, 8, 9])


@pytest.fixture(scope="module")
def task() -> Countdown:
    return make_task("countdown")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("3 * 8 end", "correct"),
        ("8 * 3 end", "correct"),
        ("4 * ( 9 - 3 ) end", "correct"),
        ("( 9 - 3 ) * 4 end", "correct"),
        ("8 / ( 4 / 3 ) * 4 end", "wrong"),  # 4 is there once
        ("9 * 8 / 3 end", "correct"),
        ("9 / 3 * 8 end", "correct"),
        ("3 + 4 * 8 - 9 end", "wrong"),  # 26
        ("24 end", "wrong"),  # not given
        ("3 * 8 * 4 / 4 end", "wrong"),
        ("3 / ( 4 - 4 ) end", "wrong"),  # divided by nothing
        ("3 * 8", "unparsable"),
        ("3 * end", "unparsable"),
        ("* 3 8 end", "unparsable"),
        ("( 3 * 8 end", "unparsable"),
        ("3 * 8 ) end", "unparsable"),
        ("3 8 end", "unparsable"),
        ("- 3 end", "unparsable"),
        ("٣ * 8 end", "unparsable"),
        ("3 ** 8 end", "unparsable"),
        ("3 * 8 # end", "unparsable"),
        ("end", "unparsable"),
        ("", "unparsable"),
    ],
)
def test_outcome_of_an_expression(task: Countdown, text: str, outcome: str) -> None:
    (reward,) = task.reward([(HAND, text)])
    assert (reward.outcome, reward.value) == (outcome, float(outcome == "correct"))


def test_forms_of_one_answer_are_one(task: Countdown) -> None:
    assert isinstance(task, CanonicalTask)
    groups = [
        ["3 * 8 end", "8 * 3 end", "( 8 ) * 3 end", "( 3 * 8 ) end"],
        ["4 * ( 9 - 3 ) end", "( 9 - 3 ) * 4 end"],
        ["9 * 8 / 3 end", "9 / 3 * 8 end", "8 / 3 * 9 end", "8 / ( 3 / 9 ) end", "8 * ( 9 / 3 ) end"],
    ]
    forms = [{task.canonical(HAND, text) for text in group} for group in groups]
    assert all(len(form) == 1 for form in forms)
    assert len(set.union(*forms)) == 3
    assert task.canonical(HAND, "3 + 8 end") is None
    one = Problem("one", "", [6, 1, 2, 3, 9])
    assert task.canonical(one, "2 * 3 end") != task.canonical(one, "1 * 2 * 3 end")  # another number is used


def test_sums_and_differences_are_flattened() -> None:
    texts = ["9 - ( 4 - 3 )", "3 + 9 - 4", "( 2 + 3 ) * ( 9 - 4 )"]
    assert [parse(text.split())[0].text for text in texts] == ["3 + 9 - 4", "3 + 9 - 4", "( 2 + 3 ) * ( 9 - 4 )"]


def brute(numbers: tuple[int, ...]) -> dict[Fraction, int]:
    """Values of all ways to join a sequence of numbers, over all orders: no canonical form."""
    num_with_value: Counter[Fraction] = Counter()

    def values(items: tuple[Fraction, ...]) -> list[Fraction]:
        if len(items) == 1:
            return [items[0]]
        result = []
        for cut in range(1, len(items)):
            for a, b in product(values(items[:cut]), values(items[cut:])):
                result += [a + b, a - b, a * b] + ([a / b] if b else [])
        return result

    for order in permutations(map(Fraction, numbers)):
        num_with_value.update(values(order))
    return num_with_value


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=3))
def test_the_expressions_reach_what_all_orders_and_trees_reach(numbers: list[int]) -> None:
    listed = tuple(sorted(numbers))
    reached = {Fraction(e.numerator, e.denominator) for e in expressions(listed)}
    assert reached == set(brute(listed))
    texts = [e.text for e in expressions(listed)]
    assert len(set(texts)) == len(texts)
    for expression in expressions(listed):
        read, used = parse(expression.text.split())
        assert read == expression
        assert tuple(sorted(used)) == listed


def test_answers_are_counted_as_by_hand() -> None:
    # 2, 3: 2, 3, 2+3, 3-2 (2-3 is below 0), 2*3; 2/3 and 3/2 are no whole numbers.
    assert answers((2, 3)) == {1: ("3 - 2",), 2: ("2",), 3: ("3",), 5: ("2 + 3",), 6: ("2 * 3",)}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 5000))
def test_every_demonstration_is_right_and_in_the_vocabulary(task: Countdown, index: int) -> None:
    prompt, response = task.demonstration(index)
    words = prompt.split(" ")
    assert (words[0], words[2], words[-1]) == ("make", "from", ":")
    answer = [int(words[1]), *map(int, words[3:-1])]
    assert {*words, *response.split(" ")} <= set(task.vocabulary)
    assert len(response.split(" ")) <= task.max_tokens
    assert task.reward([(Problem("x", prompt, answer), response)])[0].correct


def test_every_problem_has_as_many_answers_as_asked(task: Countdown) -> None:
    for i in range(100):
        target, *numbers = task.problem("train", i).answer
        assert len(answers(tuple(numbers))[target]) >= 4
        assert 10 <= target <= 50


def test_splits_are_disjoint(task: Countdown) -> None:
    sizes = {split: task.size(split) or 1000 for split in ("train", "validation", "test")}
    assert (sizes["test"], sizes["validation"]) == (512, 512)
    sides = {split: {task.problem(split, i).prompt for i in range(n)} for split, n in sizes.items()}  # type: ignore[arg-type]
    assert (len(sides["test"]), len(sides["validation"])) == (512, 512)
    assert not sides["test"] & sides["validation"]
    assert not sides["train"] & (sides["test"] | sides["validation"])


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_numbers": 5}, r"2 to 4 numbers of 1 to 100"),
        ({"smallest": 60}, r"task.smallest=60, task.largest=50"),
        ({"num_numbers": 2, "smallest": 100, "largest": 200}, r"No target of 100 to 200 has task.least=4 answers"),
    ],
)
def test_impossible_knobs_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task("countdown", **knobs)
