from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from rlvr.records import CanonicalTask, Problem
from rlvr.task.coins import Coins, ways
from tests.support.tasks import make_task


def make_coins(**knobs: Any) -> Coins:
    return make_task("coins", **knobs)


def test_the_usual_sizes_leave_final_problems() -> None:
    task = make_coins()
    splits = [{task.problem(s, i).prompt for i in range(task.size(s) or 0)} for s in ("test", "validation", "final")]
    assert min(map(len, splits)) > 30
    assert len(set.union(*splits)) == sum(map(len, splits))


HAND = Problem("hand", "pay 7 with 2 3 5 :", [7, 2, 3, 5])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("2 5 end", "correct"),
        ("5 2 end", "correct"),
        ("2 2 3 end", "correct"),
        ("3 2 2 end", "correct"),
        ("7 end", "wrong"),  # no such coin
        ("2 2 2 1 end", "wrong"),
        ("5 3 end", "wrong"),  # 8
        ("5 end", "wrong"),
        ("end", "wrong"),
        ("2 5", "unparsable"),  # cut
        ("2 end 5", "unparsable"),
        ("2 5 end end", "unparsable"),
        ("pay 2 5 end", "unparsable"),
        ("2 ٥ end", "unparsable"),  # digits of another script
        ("2 05 end", "unparsable"),
        ("1_0 end", "unparsable"),
        ("", "unparsable"),
    ],
)
def test_outcome_of_a_payment(text: str, outcome: str) -> None:
    (reward,) = make_coins().reward([(HAND, text)])
    assert (reward.outcome, reward.value) == (outcome, float(outcome == "correct"))


def test_too_many_coins_are_wrong() -> None:
    problem = Problem("hand", "", [13, 1, 2, 3])
    texts = [" ".join(["1"] * 13 + ["end"]), " ".join(["1"] * 11 + ["2", "end"])]
    assert [r.outcome for r in make_coins().reward([(problem, text) for text in texts])] == ["wrong", "correct"]


def test_answers_that_differ_in_order_differ() -> None:
    task = make_coins()
    assert isinstance(task, CanonicalTask)
    texts = ["2 5 end", "5 2 end", "2  5 end", "5 3 end", "2 5"]
    forms = [task.canonical(HAND, text) for text in texts]
    assert forms == ["2 5", "5 2", "2 5", None, None]


def test_ways_are_counted_as_by_hand() -> None:
    # 5 with 1 and 2: 1+1+1+1+1, four orders of 1+1+1+2, three of 1+2+2: 8; with at most 4 coins 7, with at most 3: 3.
    table = ways((1, 2), 5, 5)
    assert [table[m][5] for m in range(6)] == [0, 0, 0, 3, 7, 8]


@given(st.sets(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 10), st.integers(0, 5))
def test_ways_agree_with_all_sequences(coins: set[int], total: int, most: int) -> None:
    listed = tuple(sorted(coins))
    sequences = [s for m in range(most + 1) for s in product(listed, repeat=m) if sum(s) == total]
    assert ways(listed, 10, 5)[most][total] == len(sequences)


@given(st.integers(0, 20_000))
def test_every_demonstration_is_right_and_in_the_vocabulary(index: int) -> None:
    task = make_coins()
    prompt, response = task.demonstration(index)
    words = prompt.split(" ")
    assert (words[0], words[2], words[-1]) == ("pay", "with", ":")
    total, *coins = (int(words[i]) for i in (1, 3, 4, 5))
    assert 12 <= total <= 40
    assert 1 <= min(coins) < max(coins) <= 9
    assert {*words, *response.split(" ")} <= set(task.vocabulary)
    assert len(response.split(" ")) <= task.max_tokens
    assert task.reward([(Problem("x", prompt, [total, *coins]), response)])[0].correct


@pytest.mark.slow
def test_demonstrations_show_every_right_answer_with_the_same_chance() -> None:
    task = make_coins(num_coins=2, largest_coin=2, smallest=5, largest=12, least=1, test_problems=1)
    # Of coins 1 and 2 there are eight problems at most; 5 has the 8 sequences above.
    shown = [response for prompt, response in map(task.demonstration, range(30_000)) if prompt.startswith("pay 5 ")]
    if not shown:
        pytest.fail("5 is on the held-out side: choose another sum")
    counts = Counter(shown)
    assert len(counts) == 8
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_every_problem_has_as_many_right_answers_as_asked() -> None:
    task = make_coins(least=50)
    for split, number in (("train", 300), ("test", 200)):
        for i in range(number):
            total, *coins = task.problem(split, i).answer  # type: ignore[arg-type]
            assert task.num_answers(total, tuple(coins)) >= 50


def test_mistaken_demonstrations_answer_another_problem() -> None:
    task = make_coins(mistakes=0.5)
    shown = [task.demonstration(i) for i in range(1000)]
    problems = [Problem("x", p, [int(w) for w in p.split() if w.isdigit()]) for p, _ in shown]
    right = sum(r.correct for r in task.reward([(p, text) for p, (_, text) in zip(problems, shown, strict=True)]))
    assert abs(right / 1000 - 0.5) < 4 * 0.5 / 1000**0.5 + 0.02
