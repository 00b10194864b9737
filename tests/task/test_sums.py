import re
from typing import Any

import pytest

from rlvr.records import AnsweringTask, Problem, SolvedTask
from rlvr.task.sums import Sums
from tests.support.tasks import make_task


def make_sums(**knobs: Any) -> Sums:
    return make_task("sums", **knobs)


HAND = Problem("hand", "What is 7 + 12? Answer with the number only.", [19, "7 + 12"])
JUDGED = {
    "19": "correct",
    " 19.": "correct",
    "19.0": "correct",
    "The answer is 19, of course": "correct",
    "7 + 12 = 19": "correct",
    "7+12=19": "correct",
    "19 is 7 + 12": "correct",  # the question again, behind the answer
    "18, no: 19": "correct",
    "20": "wrong",
    "-19": "wrong",
    "= −19": "wrong",
    "19 or 20": "wrong",
    "7 + 12": "wrong",  # the question again
    "What is 7 +  12?": "wrong",
    "7 + 12 = 19%": "wrong",
    "12 + 7": "wrong",  # its last number is 7
    "nineteen": "unparsable",
    "": "unparsable",
    "19th": "unparsable",
    "1.9.0": "unparsable",
    "x19": "unparsable",
}


def test_the_last_number_outside_of_the_question_is_the_answer() -> None:
    rewards = make_sums().reward([(HAND, text) for text in JUDGED])
    assert dict(zip(JUDGED, (reward.outcome for reward in rewards), strict=True)) == JUDGED
    assert [reward.value for reward in rewards] == [float(outcome == "correct") for outcome in JUDGED.values()]


def test_numbers_are_read_as_written() -> None:
    task, read = make_sums(), {"1,234": "1234", "1,2,3": "3", "12,5": "5", "12 - 5": "5", "12 -5": "5", "(−3)": "-3"}
    assert isinstance(task, AnsweringTask)
    assert {text: task.answer(HAND, text) for text in read} == read
    assert task.answer(Problem("hand", "", [1234, "1200 + 34"]), "1200 + 34 = 1,234") == "1234"


def test_a_story_that_is_repeated_is_no_answer() -> None:
    task = make_sums(level=4)
    problem = task.problem("train", 0)
    value, story = problem.answer
    texts = [story, f"{story} {value}", f"{value}"]
    assert [r.outcome for r in task.reward([(problem, t) for t in texts])] == ["wrong", "correct", "correct"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_values_are_those_of_python(level: int) -> None:
    task = make_sums(level=level)
    assert isinstance(task, SolvedTask)
    for index in range(300):
        problem = task.problem("train", index)
        value, expression = problem.answer
        assert re.fullmatch(r"[\d +*-]+", expression)
        assert value == eval(expression) >= 0
        assert expression in problem.prompt
        assert task.reward([(problem, task.solution(problem))])[0].correct


def test_stories_by_hand() -> None:
    """Each kind of story, with its numbers read back: additions and subtractions in their order, products of two."""
    task, kinds = make_sums(level=4), set[str]()
    for index in range(300):
        value, story = task.problem("train", index).answer
        x, y, z = map(int, re.findall(r"\d+", story))
        kinds.add(story.split()[0] + story.split()[1])
        by_hand = {"Ann": x + y - z, "A bus": x - y + z, "There": x - y + z}
        product = {"A box": x * y + z, "A baker": x * y + z, "Mia": x * y + z}
        assert [value] == [right for start, right in (by_hand | product).items() if story.startswith(start)]
        assert value >= 0
    assert len(kinds) == 6


def test_the_question_in_other_words_is_no_answer_where_its_last_number_is_the_value() -> None:
    problem = Problem("hand", "What is 60 - 30?", [30, "60 - 30"])
    texts = {"60 − 30": "wrong", "60 minus 30": "wrong", "It is 60 − 30 = 30": "correct", "30": "correct"}
    rewards = make_sums(level=2).reward([(problem, text) for text in texts])
    assert [reward.outcome for reward in rewards] == list(texts.values())


def test_a_sum_of_digits_is_on_the_side_of_its_mirror_image() -> None:
    task = make_sums(level=1, test_problems=96)
    sides = [{_mirrored(task.problem(split, i)) for i in range(num)} for split, num in (("train", 3000), ("test", 96))]
    assert not sides[0] & sides[1]
    assert len({task.problem("test", i).answer[1] for i in range(96)}) == 12
    with pytest.raises(ValueError, match=r"level 1 has 96 test problems, 12 expressions in 8 phrasings. Pass"):
        make_sums(level=1, test_problems=97)


def _mirrored(problem: Problem) -> tuple[str, ...]:
    return tuple(sorted(problem.answer[1].split()))


def test_no_arithmetic_is_on_two_sides_whatever_its_phrasing() -> None:
    task = make_sums(level=[1, 2], test_levels=[1, 2, 3, 4], test_problems=40)
    assert task.size("test") == task.size("validation") == 160
    sides = [
        {tuple(task.problem(split, i).answer) for i in range(num)}
        for split, num in (("train", 3000), ("test", 160), ("validation", 160))
    ]
    assert not sides[0] & (sides[1] | sides[2])
    assert not sides[1] & sides[2]
    assert {task.problem("test", i).source for i in range(160)} == {"sums_1", "sums_2", "sums_3", "sums_4"}
    assert {task.problem("train", i).source for i in range(20)} == {"sums_1", "sums_2"}
    assert len({task.problem("test", i).prompt for i in range(160)}) == 160
