from collections import Counter
from typing import Any

import pytest

from rlvr.records import Problem
from rlvr.task.skills import Skills
from tests.support.tasks import make_task


def make_skills(**knobs: Any) -> Skills:
    return make_task("skills", **{"shortest": 3, "longest": 6, "taught": 8, "beyond": 10, "test_problems": 32, **knobs})


RIGHT = {"sort": "1 3 3 7 end", "reverse": "3 1 3 7 end", "shift": "8 4 2 4 end", "fall": "7 3 3 1 end"}


@pytest.mark.parametrize("skill", RIGHT)
def test_each_skill_answers_as_its_name_says(skill: str) -> None:
    task = make_skills(skills=list(RIGHT))
    prompt, answer = task.posed((skill, (7, 3, 1, 3)))
    assert (prompt, answer) == (f"{skill} 7 3 1 3 :", RIGHT[skill])
    problem = Problem("x", prompt, answer)
    outcomes = {text: task.reward([(problem, text)])[0].outcome for text in RIGHT.values()}
    assert outcomes == {text: "correct" if text == answer else "wrong" for text in RIGHT.values()}
    assert task.solution(problem) == answer


@pytest.mark.parametrize("text", ["1 3 3 7", "one end", "1 3 3 7 end end", "sort 1 3 3 7 end", ""])
def test_what_is_no_string_of_digits_is_unparsable(text: str) -> None:
    problem = Problem("x", "sort 7 3 1 3 :", RIGHT["sort"])
    assert make_skills().reward([(problem, text)])[0].outcome == "unparsable"


def test_training_asks_for_one_skill_on_short_inputs() -> None:
    task = make_skills(trained="reverse")
    prompts = [task.problem("train", i).prompt.split() for i in range(500)]
    assert {words[0] for words in prompts} == {"reverse"}
    assert {len(words) - 2 for words in prompts} == {3, 4, 5, 6}


def test_demonstrations_teach_all_skills_on_inputs_as_long_as_taught() -> None:
    seen = Counter((p.split()[0], len(p.split()) - 2) for p, _ in map(make_skills().demonstration, range(3000)))
    assert set(seen) == {(skill, length) for skill in ("sort", "reverse") for length in range(3, 9)}
    assert min(seen.values()) > 180  # 250 expected, deviation 15


def test_each_skill_has_a_benchmark_of_short_and_one_of_longer_inputs() -> None:
    task = make_skills()
    problems = [task.problem("test", i) for i in range(task.size("test") or 0)]
    names = {f"skills_{skill}{span}" for skill in ("sort", "reverse") for span in ("", "_long")}
    assert Counter(p.source for p in problems) == dict.fromkeys(names, 32)
    for problem in problems:
        words = problem.prompt.split()
        assert problem.source.split("_")[1] == words[0]
        assert (len(words) - 2 > 6) == problem.source.endswith("_long")
        assert len(problem.answer.split()) <= task.max_tokens
        assert task.reward([(problem, problem.answer)])[0].correct
        assert {*words, *problem.answer.split()} <= set(task.vocabulary)
