from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.records import Problem
from rlvr.task.styles import STYLES, Styles


def make_styles(**knobs: int) -> Styles:
    return Styles(**{"shortest": 3, "longest": 8, "test_problems": 64, "seed": 0, **knobs})


HAND = Problem("hand", "sort 7 1 3 1 :", [7, 1, 3, 1])
RIGHT = {
    "plain": "plain 1 1 3 7 end",
    "spelled": "spelled one one three seven end",
    "listed": "listed 1 , 1 , 3 , 7 end",
    "boxed": "boxed [ 1 1 3 7 ] end",
    "falling": "falling 7 3 1 1 end",
}


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        *((text, "correct") for text in RIGHT.values()),
        ("plain 1 3 7 end", "wrong"),  # a digit is missing
        ("plain 7 3 1 1 end", "wrong"),  # the digits of another style
        ("boxed 1 1 3 7 end", "wrong"),
        ("listed 1 , 1 , 3 , 7 , end", "wrong"),
        ("plain 1 1 3 7", "unparsable"),  # cut
        ("1 1 3 7 end", "unparsable"),  # no style
        ("", "unparsable"),
    ],
)
def test_what_is_not_right_earns_nothing(text: str, outcome: str) -> None:
    """Each style is right."""
    (reward,) = make_styles().reward([(HAND, text)])
    assert (reward.value, reward.outcome) == (float(outcome == "correct"), outcome)


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_every_style_of_the_longest_string_fits(longest: int) -> None:
    task = make_styles(shortest=2, longest=longest, test_problems=6)
    lengths = {len(response.split(" ")) for _, response in map(task.demonstration, range(2000))}
    assert max(lengths) == task.max_tokens


@given(st.integers(0, 10_000))
def test_every_demonstration_is_right_in_the_vocabulary_and_short_enough(index: int) -> None:
    task = make_styles()
    prompt, response = task.demonstration(index)
    words = prompt.split(" ")
    assert (words[0], words[-1]) == ("sort", ":")
    digits = [int(w) for w in words[1:-1]]
    assert 3 <= len(digits) <= 8
    assert {*words, *response.split(" ")} <= set(task.vocabulary)
    assert len(response.split(" ")) <= task.max_tokens
    assert task.reward([(Problem("x", prompt, digits), response)])[0].correct


def test_demonstrations_use_every_style_alike_at_every_length() -> None:
    task = make_styles()
    seen = Counter(
        (len(prompt.split()) - 2, response.split()[0]) for prompt, response in map(task.demonstration, range(6000))
    )
    assert len(seen) == 6 * 5
    assert min(seen.values()) > 150  # 200 expected, deviation 14


def test_the_style_tells_right_answers_apart() -> None:
    task = make_styles()
    assert [task.canonical(HAND, RIGHT[style]) for style in STYLES] == list(STYLES)
    assert task.canonical(HAND, "plain 1 3 7 end") is None
